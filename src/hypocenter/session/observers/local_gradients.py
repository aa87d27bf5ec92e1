"""Each rank's own gradients before they are averaged: who had the NaN that all ranks have afterwards.

Norms of all of them in one fused pass when they are about to be reduced (hypocenter.tap.before_reduction says what is
seen where), taken to the host with the check's transfer. Rows: of every gradient that is not finite, or far above what
it was in the steps before; of all on the steps of config.replicas, with digest and sketch. On config.collectives also
of the reduced ones where they should be the plain mean, so that the reduction itself can be checked.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.detect.local_rows import ENOUGH, LOCAL, NORM, NOTED, RECENT, REDUCED, REMEMBERED
from hypocenter.nouns import Reading, Summary
from hypocenter.schedule import parse
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.exact_values import Exact
from hypocenter.tap import collectives
from hypocenter.tap.before_reduction import Adapters, Local
from hypocenter.tap.before_reduction.by_hand import ByHand
from hypocenter.tap.before_reduction.ddp import DdpLocals, is_plain_mean, reduced_by
from hypocenter.tap.gradients import local, norms
from hypocenter.tap.names import strip
from hypocenter.tap.weakly import Ref


@dataclass(frozen=True, slots=True)
class _What:
    """What does not change from step to step about a gradient."""

    parameter: weakref.ref[torch.Tensor]
    size: torch.Size
    kind: torch.dtype
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(slots=True)
class _Seen:
    """One gradient that was looked at."""

    what: _What
    microbatch: int
    port: str = LOCAL
    norm: float = 0.0
    exact: int | None = None  # ticket of its digest and sketch


class LocalGradients(Observer):
    """Looks at each rank's own gradients before they are reduced. Off in a process that is alone."""

    needs = "ranks"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._replicas, self._collectives = parse(context.config.replicas), parse(context.config.collectives)
        self._ddp = DdpLocals(self._tell, self._failed)
        self._by_hand = ByHand(context.names, self._heard_by_hand)
        self._adapters: Adapters | None = None
        self._exact = Exact()
        self._seen: list[_Seen] = []
        self._whats: dict[int, _What] = {}  # by id of the parameter, where it is one of the model's own
        self._history: dict[str, deque[float]] = {}
        self._generation = -1
        self._is_armed = False  # from a backward on until the check: what a replay reduces is not the run's
        self._is_on = True
        self._unlisten: Callable[[], None] = lambda: None

    def attach(self) -> Callable[[], None]:
        """Do nothing yet but return the undo: listening begins at the first backward of a program of several ranks."""

        def undo() -> None:
            self._is_on = False
            self._ddp.detach()
            self._unlisten()
            if self._adapters is not None:
                self._adapters.detach()

        return undo

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Arm what looks at gradients on their way into a reduction."""
        if self.context.rank()[1] < 2:
            return
        if self._adapters is None:
            self._adapters = Adapters(self._tell, self.context.warn)
            self._unlisten = collectives.listen(self._by_hand, names=self.context.names, fail=self.context.warn)
        self._adapters.look()
        if self._generation != self.context.names.generation:
            self._ddp.look(self.context.names.roots())
            self._generation = self.context.names.generation
        self._by_hand.is_armed = not self._ddp.modules()
        self._is_armed = True
        self._ddp.before_backward(roots)

    def after_backward(self) -> None:
        """Look at what the reduction made of the gradients, on schedule."""
        self._ddp.after_backward()
        if not self._seen or not self._collectives(self.context.clock.step):
            return
        reduced: list[Local] = []
        for module in self._ddp.modules():
            if module.require_backward_grad_sync and is_plain_mean(module):
                reduced += [Local(p, p.grad) for p in reduced_by(module) if p.grad is not None]
        if reduced:
            self._look(reduced, REDUCED)

    def before_update(self, update: Update) -> None:
        """Write the rows, as the norms are on the host now."""
        seen, self._seen = self._seen, []
        self._is_armed = self._by_hand.is_armed = False
        if not seen:
            return
        scale = update.scaled.state.scale if update.scaled is not None else 1.0
        facts, is_due = self._exact.drain(), self._replicas(update.step)
        if not all(math.isfinite(each.norm) for each in seen):  # in the order of the model, not of buckets: it is read
            places = {name: at for at, (name, _) in enumerate(self.context.names.parameters())}
            seen.sort(key=lambda each: places.get(each.what.name, -1))
        for each in seen:
            self._note(each, update.step, scale or 1.0, facts, is_due=is_due)

    def _tell(self, locals_: Sequence[Local]) -> None:
        """Look at gradients that an adapter tells of inside the user's backward: must never raise."""
        self._by_hand.is_armed = False  # what a framework sends around from here on is not done by hand
        self._tell_by_hand(locals_)

    def _heard_by_hand(self, locals_: Sequence[Local]) -> None:
        if self._is_on and self._is_armed:
            for tell in self.context.by_hand:
                tell()
        self._tell_by_hand(locals_)

    def _tell_by_hand(self, locals_: Sequence[Local]) -> None:
        if not self._is_on or not self._is_armed:
            return
        try:
            self._look(locals_, LOCAL)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._is_on = False
        self.context.warn(
            f"gradients before their reduction are no longer looked at after an internal error: {error!r}"
        )

    @torch.no_grad()
    def _look(self, locals_: Sequence[Local], port: str) -> None:
        with _disable_current_modes():  # what traces the program must not see our operators
            held = [(each, values) for each in locals_ if (values := local(each.gradient)) is not None]
            if not held:
                return
            step, microbatch = self.context.clock.step, self.context.clock.microbatch
            seen = [_Seen(self._described(each, values), microbatch, port) for each, values in held]
            if self._collectives(step) or (port == LOCAL and self._replicas(step)):
                tickets = self._exact.add([values for _, values in held])
                for each, ticket in zip(seen, tickets, strict=True):
                    each.exact = ticket
            self._seen += seen
            found = norms([values for _, values in held])
            by_device: dict[torch.device, list[int]] = {}
            for index, norm in enumerate(found):
                by_device.setdefault(norm.device, []).append(index)
            for indices in by_device.values():
                self.context.ride(torch.stack([found[i] for i in indices]), self._reader([seen[i] for i in indices]))

    def _reader(self, seen: Sequence[_Seen]) -> Callable[[Sequence[float]], None]:
        def read(numbers: Sequence[float]) -> None:
            self._is_armed = self._by_hand.is_armed = False
            for each, norm in zip(seen, numbers, strict=False):
                each.norm = norm
            self.context.local.add([each.norm for each in seen if each.port == LOCAL])

        return read

    def _described(self, each: Local, values: torch.Tensor) -> _What:
        key = id(each.parameter)
        name = self._name_below(each) or self.context.label(each.parameter)
        known = self._whats.get(key)
        if (
            known is not None and known.parameter() is each.parameter and known.name == name
            and known.size == values.shape and known.kind is values.dtype
        ):  # fmt: skip
            return known
        what = _What(
            Ref(each.parameter), values.shape, values.dtype, name, tuple(values.shape),
            str(values.dtype).removeprefix("torch."),
        )  # fmt: skip
        if not each.name:
            self._whats[key] = what
        return what

    def _name_below(self, each: Local) -> str:
        if not each.name:
            return ""
        module = self.context.names.module_name(each.module) if each.module is not None else None
        return f"{module}.{strip(each.name)}" if module else strip(each.name)

    def _note(
        self, seen: _Seen, step: int, scale: float, facts: Sequence[tuple[int | None, tuple[float, ...]]], *,
        is_due: bool,
    ) -> None:  # fmt: skip
        norm = seen.norm / scale
        is_bad, recent = not math.isfinite(norm), 0.0
        is_out = False
        if seen.port == LOCAL:
            past = self._history.setdefault(seen.what.name, deque(maxlen=REMEMBERED))
            recent = max(past, default=0.0)
            is_out = len(past) >= ENOUGH and 0.0 < recent * NOTED < norm
            if not is_bad:
                past.append(norm)
        if not (is_bad or is_out or is_due or seen.exact is not None):
            return
        digest, sketch = facts[seen.exact] if seen.exact is not None else (None, ())
        if is_bad or is_out or digest is not None or is_due:
            unscaled = tuple(value / scale for value in sketch) if all(map(math.isfinite, sketch)) else ()
            summary = Summary(
                n=seen.what.size.numel(), n_nan=int(math.isnan(norm)), n_posinf=int(math.isinf(norm)),
                sumsq=0.0 if is_bad else norm * norm, sketch=unscaled or None,
            )  # fmt: skip
            self.rows.append(self._row(seen, step, summary, NORM, digest))
        if is_out:
            summary = Summary(n=seen.what.size.numel(), sumsq=recent * recent)
            self.rows.append(self._row(seen, step, summary, RECENT, None))

    def _row(self, seen: _Seen, step: int, summary: Summary, call: int, digest: int | None) -> Reading:
        return Reading(
            step=step, microbatch=seen.microbatch, phase="grad", site=seen.what.name, port=seen.port, call=call,
            order=self.context.clock.next_order(), dtype=seen.what.dtype, shape=seen.what.shape, summary=summary,
            digest=digest,
        )  # fmt: skip
