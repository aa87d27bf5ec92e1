"""The law "ties": names that were one parameter stay one. For HC265.

Which names are one parameter is noted when an optimizer makes its first update, and looked at when a later one does: a
model that was made or loaded anew has another optimizer too. Two that were one and are two now count only where they
hold the same values, bit for bit, and these are near what the one had: a second model that was made untied begins with
values of its own, if also with the same in all its layers. It is a note where a program may mean it: it has put
another parameter in the place of one of the two alone, or has made the model with another flag.

And what a model itself says is one parameter (transformers', by its config) is one, at the first update of each
optimizer: it counts where the optimizer holds both, and they are of one shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hypocenter import schedule
from hypocenter.detect.law_rows import MEANT, SAID, UNTIED
from hypocenter.nouns import replace
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.weakly import Ref

MOST = 256  # pairs of names
ELEMENTS = 256  # of a tied parameter, kept at the first update of each optimizer and at steps of `doubling`
NEAR = 0.5  # of its norm: another beginning is further away

_Pair = tuple[str, str, str]  # class of a model, two names in it


@dataclass(slots=True)
class _Tie:
    """Two names of one parameter, when they were one, and values that it had later."""

    parameter: Ref[Any]
    step: int
    flags: Mapping[str, bool]  # of the model
    values: Any = None


class Ties(Observer[Observed]):
    """Writes a row for the first two names that were one parameter and are two copies of it."""

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._seen: dict[int, Ref[Any]] = {}  # optimizers that have made an update
        self._tied: dict[_Pair, _Tie] = {}
        self._is_told = False
        self._is_due = schedule.parse("doubling")

    def at_rest(self) -> Iterable[str]:
        """New optimizers are looked at; values are kept at steps at which all are told."""
        return ("before_update", "after_update")

    def before_update(self, update: Update) -> None:
        """Look when an optimizer makes its first update."""
        optimizer = update.optimizer
        known = self._seen.get(id(optimizer))
        if optimizer is None or self._is_told or (known is not None and known() is optimizer):
            return
        self._seen[id(optimizer)] = Ref(optimizer)
        own = update.ids
        for root in self.context.names.roots():
            said = [
                pair for pair in self.context.framework.said_to_be_tied(root)
                if own.issuperset(map(id, pair)) and _are_trained_apart(*pair)
            ]  # fmt: skip
            if said:
                one, other = map(self.context.label, reversed(said[0]))
                self._tell(update.step, one, other, len(said), SAID)
                return
            kind, named = self.context.framework.named(root)
            if own.isdisjoint(map(id, named.values())):
                continue
            copies = [
                (a, b) for (of, a, b), tie in self._tied.items() if of == kind and a in named and b in named
                and id(named[a]) in own and self._are_two(named[a], named[b], tie.values)
            ]  # fmt: skip
            if copies:
                (one, other), flags = copies[0], self.context.framework.flags(root)
                tie = self._tied[kind, one, other]
                is_one_left = any(tie.parameter() is named[name] for name in (one, other))
                is_meant = is_one_left or any(flags.get(name, was) != was for name, was in tie.flags.items())
                self._tell(update.step, one, other, len(copies), MEANT if is_meant else "", tie.step)
                return
            first: dict[int, str] = {}
            flags: Mapping[str, bool] | None = None
            for name, parameter in named.items():
                one = first.setdefault(id(parameter), name)
                if one is not name and len(self._tied) < MOST:
                    flags = self.context.framework.flags(root) if flags is None else flags
                    tie = self._tied.setdefault((kind, one, name), _Tie(Ref(parameter), update.step, flags))
                    tie.parameter = Ref(parameter)

    def after_update(self, update: Update) -> None:
        """Keep values of what is tied, at some steps."""
        if not self._tied or self._is_told or not self._is_due(update.step):
            return
        for tie in self._tied.values():
            parameter = tie.parameter()
            values = None if parameter is None else self.context.framework.sample(parameter, ELEMENTS)
            tie.values = tie.values if values is None else self.context.framework.copied(values)

    def _tell(self, step: int, one: str, other: str, n: int, by: str = "", call: int = 0) -> None:
        self._is_told = True
        row = number_row(other, UNTIED, step, self.context.clock.next_order(), float(n), module=by, call=call)
        self.rows.append(replace(row, names=(one,)))

    def _are_two(self, one: Any, other: Any, was: Any) -> bool:
        """Return whether two parameters are trained apart, and hold the same values, near those that one of them had.

        Waits for the device.
        """
        if was is None or not _are_trained_apart(one, other):
            return False
        samples = [self.context.framework.sample(p, ELEMENTS) for p in (one, other)]
        if any(each is None for each in samples):
            return False
        a, b, before = map(self.context.framework.on_host, (*samples, was))
        if before.shape != a.shape or not np.array_equal(a, b) or (a == a[0]).all():
            return False
        return float(np.linalg.norm(a - before)) <= NEAR * float(np.linalg.norm(before))


def _are_trained_apart(one: Any, other: Any) -> bool:
    """Return whether these are two parameters of one shape and format that get gradients."""
    if one is other or not (one.requires_grad and other.requires_grad):
        return False
    return one.shape == other.shape and one.dtype == other.dtype
