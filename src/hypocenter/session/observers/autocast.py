"""Autocast where it should not be: around backward, around updates, and bfloat16 under a loss scaler. For HC216 to 218.

What is unusual is measured by replaying the micro-batch: with backward outside autocast, or with autocast's cache of
cast weights off. That is done at most MAX_REPLAYS times in a run, and not at all in a run that does nothing unusual.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace

import torch

from hypocenter.detect import misuse
from hypocenter.replay.engine import Replayed, ReplayImpossible
from hypocenter.session.check import scalar_reading
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.tap.gradients import norms, to_host
from hypocenter.tap.state import Ambient, capture_ambient, entered
from hypocenter.tap.tape import Microbatch, Tape

MAX_REPLAYS = 3  # of each of the two questions: the first is the control, two more show that it lasts
MAX_ELEMENTS = 1 << 28  # of all gradients; a replay of more would need memory that training may not leave
LOOK_EVERY = 256  # steps between two looks at the types that a loss scaler works with


class Autocast(Observer):
    """Measures what autocast does in places where torch advises against it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._around_backward: Ambient | None = None
        self._n_backward_replays = 0
        self._n_stale_replays = 0
        self._n_scaled = 0

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Remember under which autocast backward was called, if autocast is on."""
        if self._n_backward_replays < MAX_REPLAYS and torch._C._is_any_autocast_enabled():
            self._around_backward = capture_ambient()

    def before_update(self, update: Update) -> None:
        """Measure what was seen, while the parameters are still those that the step began with."""
        around, self._around_backward = self._around_backward, None
        if around is not None and update.check.loss_finite:
            self._backward_inside(update, around)
        if self._n_stale_replays < MAX_REPLAYS and torch._C._is_any_autocast_enabled():
            self._update_inside(update)
        if update.scaled is not None:
            if self._n_scaled % LOOK_EVERY == 0:
                self._bfloat16(update)
            self._n_scaled += 1

    def _backward_inside(self, update: Update, around: Ambient) -> None:
        dtype = next((str(kind).removeprefix("torch.") for _, is_on, kind in around.autocast if is_on), "")
        self._note(update, misuse.BACKWARD, 1.0, dtype)
        self._n_backward_replays += 1
        last = update.microbatches[-1] if update.microbatches else None
        if last is None or not self._may_replay(update):
            return
        parameters = [p for p, _ in update.gradients]
        inside = self._replay(last, parameters, around)
        outside = self._replay(last, parameters, replace(around, autocast=()))
        if inside is None or outside is None or not outside.finite:
            return
        name, error = self._worst(parameters, inside.grads, outside.grads)
        self._note(update, misuse.BACKWARD_ERROR, error, name)

    def _worst(
        self,
        parameters: Sequence[torch.Tensor],
        inside: Sequence[torch.Tensor | None],
        outside: Sequence[torch.Tensor | None],
    ) -> tuple[str, float]:
        pairs = [
            (p, a, b) for p, a, b in zip(parameters, inside, outside, strict=True) if a is not None and b is not None
        ]
        sizes = to_host(norms([b for _, _, b in pairs]))
        errors = to_host(norms([a - b for _, a, b in pairs]))
        worst = [(e / s if s else 0.0, p) for (p, _, _), e, s in zip(pairs, errors, sizes, strict=True)]
        error, parameter = max(worst, key=lambda pair: pair[0] if math.isfinite(pair[0]) else math.inf)
        return self.context.label(parameter), error

    def _update_inside(self, update: Update) -> None:
        """Find out if old casts of the weights from the cache are used after an update inside autocast."""
        last = update.microbatches[-1] if update.microbatches else None
        if last is None or not torch.is_autocast_cache_enabled() or not self._may_replay(update):
            return
        recorded = to_host(last.values)
        if not recorded or not all(map(math.isfinite, recorded)):
            return
        self._n_stale_replays += 1
        fresh = self._replay(last, [p for p, _ in update.gradients[:1]], capture_ambient())
        if fresh is None:
            self._n_stale_replays = MAX_REPLAYS
            return
        values = to_host([v for v in fresh.values if v.numel() == 1])
        size = max(map(abs, values), default=0.0) or 1.0
        error = max((abs(a - b) for a, b in zip(recorded, values, strict=True)), default=0.0) / size
        self._note(update, misuse.STALE, error)

    def _replay(self, microbatch: Microbatch, parameters: Sequence[torch.Tensor], around: Ambient) -> Replayed | None:
        """Replay a micro-batch without reading or filling the program's own cache of cast weights; None if it fails."""
        if self.context.replayer.why_not(microbatch):
            return None
        around = replace(around, cache_enabled=False)
        try:
            with _cache_off(self.context.tape, microbatch):
                return self.context.replayer.run(microbatch, parameters, around=entered(around))
        except (ReplayImpossible, RuntimeError):
            return None

    def _may_replay(self, update: Update) -> bool:
        return self.context.config.replay and sum(g.numel() for _, g in update.gradients) <= MAX_ELEMENTS

    def _bfloat16(self, update: Update) -> None:
        events = [e for e in self.context.tape.events if e.module is not None]
        types = {dtype for e in events for _, is_on, dtype in e.ambient.autocast if is_on}
        types |= {g.dtype for _, g in update.gradients}
        if events and torch.bfloat16 in types and torch.float16 not in types:
            self._note(update, misuse.BFLOAT16, float(update.step))

    def _note(self, update: Update, site: str, value: float, module: str = "") -> None:
        phase = "scaler" if site == misuse.BFLOAT16 else "optimizer"
        row = scalar_reading(site, phase, value, update.step, self.context.clock.next_order())
        self.rows.append(replace(row, module=module))


@contextlib.contextmanager
def _cache_off(tape: Tape, microbatch: Microbatch) -> Generator[None, None, None]:
    """Let the events of a micro-batch cast weights anew at every call in this context, and keep no casts."""
    events = [event for _, event in tape.slice(microbatch)]
    before = [event.ambient for event in events]
    try:
        for event in events:
            event.ambient = replace(event.ambient, cache_enabled=False)
        yield
    finally:
        _put_back(zip(events, before, strict=True))


def _put_back(pairs: Iterable[tuple[object, Ambient]]) -> None:
    for event, ambient in pairs:
        event.ambient = ambient  # type: ignore[attr-defined]
