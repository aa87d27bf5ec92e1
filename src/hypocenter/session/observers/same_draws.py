"""Whether each step draws other random numbers than the steps before. For HC239."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hypocenter.capturing import is_capturing
from hypocenter.detect.law_rows import ALIKE_WORKERS, ALL_OF_IT, DATA_SET, DRAWS_AGAIN, SAME_DRAWS, SAME_ORDER, SITE
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.earlier_draws import Again, EarlierDraws
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.loader_batches import Handed
from hypocenter.tap.source import source_of
from hypocenter.tap.state import RngState
from hypocenter.tap.weakly import Ref

FIRST = 8  # steps that are all looked at; then each that is a power of two
REPEATS = 2  # passes over the data that a random sampler began as the pass before
IN_A_ROW = 4  # looks that found the state of the first one


class SameDraws(Observer):
    """Writes a row when the generators begin step after step at one state, although numbers are drawn in between.

    And when steps in a row begin each where an earlier one did.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._first: RngState | None = None
        self._last: RngState | None = None
        self._learned: RngState | None = None
        self._n_same = 0
        self._began: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id of an optimizer: itself, repeats before it
        self._is_told = self._is_order_told = self._are_workers_told = self._is_skipping_told = False
        self._earlier = EarlierDraws()

    def attach(self) -> Callable[[], None]:
        """Hear of seeds; returns the undo."""
        return self._earlier.attach()

    def before_update(self, update: Update) -> None:
        """Compare the state from which this step's first forward began with those before; did it draw from there?"""
        step = update.step
        handed = self.context.handed()
        if handed is not None and handed.alike and not self._are_workers_told:
            self._are_workers_told = True
            order = self.context.clock.next_order()
            self.rows.append(number_row(SITE, ALIKE_WORKERS, step, order, handed.n_workers, module=handed.alike))
        if (
            not self._is_order_told
            and handed is not None
            and (n := self._n_repeats(update.optimizer, handed)) >= REPEATS
        ):
            self._is_order_told = True
            order = self.context.clock.next_order()
            self.rows.append(number_row(SITE, SAME_ORDER, step, order, n + 1.0, module=handed.sampler))
        if handed is not None and handed.skips is not None and handed.skips[2] > 1 and not self._is_skipping_told:
            self._is_skipping_told, (name, n_skipped, n_pass) = True, handed.skips
            row = number_row(SITE, DATA_SET, step, self.context.clock.next_order(), n_skipped, module=name, call=n_pass)
            self.rows.append(replace(row, op=ALL_OF_IT, names=(str(step), "", "", "proven")))
        if self._is_told:
            return
        began = [e for e in self.context.tape.events if e.module is not None and e.rng is not None]
        learns = next((e.rng for e in began if e.ambient.grad), None)  # an evaluation may seed as it likes
        if learns is not None and learns is not self._learned:
            self._learned = learns
            if (again := self._earlier.look(update, learns)) is not None:
                self._tell(again, step)
        begun = began[0].rng if began else None
        if (step >= FIRST and step & (step - 1)) or begun is None or begun is self._last or not _has_drawn(begun):
            return  # the last: there was no update that this tape knows of
        self._last = begun
        if self._first is None or not _are_same(self._first, begun):
            self._first, self._n_same = begun, 1
            return
        self._n_same += 1
        if self._n_same == IN_A_ROW:
            self._is_told = True
            order = self.context.clock.next_order()
            self.rows.append(number_row("laws", SAME_DRAWS, step, order, float(self._n_same)))

    def _tell(self, again: Again, step: int) -> None:
        self._is_told = True
        order, (code, line) = self.context.clock.next_order(), again.place
        row = number_row(SITE, DRAWS_AGAIN, step, order, again.n, module=again.generator, call=again.ago)
        self.rows.append(replace(row, source=source_of(code.co_filename, line, code.co_name)))

    def _n_repeats(self, optimizer: Any, handed: Handed) -> int:
        """Return how often this optimizer was given a pass again: programs that train several models may seed each."""
        known = self._began.get(id(optimizer))
        if known is None or known[0]() is not optimizer or known[1] > handed.n_repeats:
            known = self._began[id(optimizer)] = Ref(optimizer), handed.n_repeats
        return handed.n_repeats - known[1]


def _has_drawn(begun: RngState) -> bool:
    """Return whether a generator of torch has moved on since."""
    if not torch.equal(begun.cpu, torch.get_rng_state()):
        return True
    if begun.device is None or begun.device_type is None or is_capturing(begun.device_type):
        return False
    module: Any = getattr(torch, begun.device_type)
    return not torch.equal(begun.device, module.get_rng_state())


def _are_same(one: RngState, other: RngState) -> bool:
    if not torch.equal(one.cpu, other.cpu) or (one.device is None) != (other.device is None):
        return False
    return one.device is None or other.device is None or torch.equal(one.device, other.device)
