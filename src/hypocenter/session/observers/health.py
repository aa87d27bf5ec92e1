"""`run --health`: at its steps, how the model is doing: activations, attention, routers, updates, gradient noise.

Before the update of a due step its last micro-batch is done again, forward, under hypocenter.replay.looking; of several
micro-batches some are done again with their gradients, whose norms tell the gradient noise. A sample of each parameter
is kept over the update. What is found goes to the host together. For the rows see hypocenter.detect.health_rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.detect.health_rows import HEALTH, LOOKED, MOVED, NOISE, SAMPLE, UPDATE
from hypocenter.nouns import Reading, Summary
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.looking import Looking, Memory
from hypocenter.replay.samples import batch_size
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.sampled import sample
from hypocenter.tap.free_memory import why_no_room
from hypocenter.tap.gradients import local, norms, to_host
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tape import Microbatch

_MOST_MICROBATCHES = 4  # whose gradients are taken again
_PATIENCE = 3  # failures in a row, after which nothing is done again any more


class Health(Observer):
    """Writes rows on the health of the model (activations, attention, updates, noise) at the due steps."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether some steps are to be looked at."""
        return config.health != "never"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse(context.config.health)
        self._memory: dict[str, Memory] = {}  # by optimizer: a model is used otherwise in the step of another
        self._before: list[tuple[Tensor, Tensor]] = []  # parameters, and what they were
        self._frozen: dict[str, tuple[int, Tensor]] = {}  # by name: step, and what it was
        self._n_failed = 0

    def before_update(self, update: Update) -> None:
        """Replay a due step before its update, and keep samples of its parameters."""
        self._before = []
        if not self._is_due(update.step) or not update.check.is_finite:
            return
        if update.microbatches and self._n_failed < _PATIENCE:
            self._look_again(update)
        if not update.skipped:
            held = [(p, part) for p in update.parameters if (part := sample(p.detach(), SAMPLE)) is not None]
            self._before = [(p, part.clone()) for p, part in held]

    def after_update(self, update: Update) -> None:
        """Measure the update by what has become of the samples, and check that what is frozen has stayed as it was."""
        before, self._before = self._before, []
        if not self._is_due(update.step):
            return
        if before and not update.skipped:
            self._tell_updates(update.step, before)
        self._look_at_frozen(update.step)

    def _look_again(self, update: Update) -> None:
        try:
            self._do_again(update)
            self._n_failed = 0
        except ReplayImpossible as why:
            self._give_up(update.step, str(why))
        except Exception as error:  # the user's own code runs here: anything may come out of it
            self._n_failed = _PATIENCE
            self._give_up(update.step, f"the replay raised {type(error).__name__}: {str(error)[:200]}")

    def _give_up(self, step: int, why: str) -> None:
        self._n_failed += 1
        if self._n_failed >= _PATIENCE:
            self.context.warn(f"the health of step {step} could not be looked at, and later ones will not be: {why}")

    def _do_again(self, update: Update) -> None:
        context, replayer = self.context, self.context.replayer
        named = replayer.parameters(context.names)
        key, last = update.check.key, update.microbatches[-1]
        tracer = Looking(OpContext(context.names.module_name), named, self._memory.setdefault(key, Memory()))
        trained = [p for _, p in named if p.requires_grad]
        has_several = len(update.microbatches) > 1 and not why_no_room(trained)
        replayed = replayer.run(
            last, trained if has_several else (), mode=tracer, context=tracer.context, must_leave_no_trace=True
        )
        tracer.used = tracer.behind(replayed.values)
        for name, error in tracer.memory.failed.items():
            context.warn(f"the look at {name} is switched off after an internal error: {type(error).__name__}: {error}")
        for found, numbers in tracer.settle():
            step = found.step
            row = self._row(update.step, step.site, found.port, numbers, dtype=found.dtype)
            self.rows.append(replace(row, module=step.module, call=step.nth, names=(step.op,)))
        n_frozen = sum(not p.requires_grad for _, p in named)
        self.rows.append(self._row(update.step, HEALTH, LOOKED, (len(tracer.steps), n_frozen)))
        if has_several:
            others = update.microbatches[-_MOST_MICROBATCHES:-1]
            self._tell_noise(update, trained, replayed.grads, others)

    def _tell_noise(
        self, update: Update, trained: Sequence[Tensor], last: Sequence[Tensor | None], others: Sequence[Microbatch]
    ) -> None:
        """Write norms of the gradients of some micro-batches, and of their mean, without the loss scale.

        Args:
            last: gradients of the last one.
            others: to do again.
        """
        squares: list[Tensor] = []
        sums: list[Tensor | None] = [None] * len(trained)
        replayer = self.context.replayer
        for other in (None, *others):
            grads = last if other is None else replayer.run(other, trained, must_leave_no_trace=True).grads
            held = [None if g is None or (v := local(g)) is None else _wide(v) for g in grads]
            squares.append(torch.stack([n.float() for n in norms([g for g in held if g is not None])]).norm())
            sums = [_added(total, g) for total, g in zip(sums, held, strict=True)]
        whole = torch.stack([n.float() for n in norms([s for s in sums if s is not None])]).norm()
        *parts, total = to_host([*squares, whole])
        scale = 1.0 if update.scaled is None else update.scaled.state.scale or 1.0
        n = len(parts)
        small = sum(part * part for part in parts) / n / scale**2
        numbers = (small, (total / n / scale) ** 2, n, batch_size(replayer.batch_tensors(update.microbatches[-1])))
        self.rows.append(self._row(update.step, HEALTH, NOISE, numbers))

    def _tell_updates(self, step: int, before: Sequence[tuple[Tensor, Tensor]]) -> None:
        now = [sample(p.detach(), SAMPLE) for p, _ in before]
        pairs = [
            (p, was, part)
            for (p, was), part in zip(before, now, strict=True)
            if part is not None and part.shape == was.shape
        ]
        if not pairs:
            return
        moved = norms([_change(was, part) for _, was, part in pairs])
        found = to_host([*norms([was for _, was, _ in pairs]), *moved])
        for i, (p, was, _) in enumerate(pairs):
            numbers = found[i], found[len(pairs) + i], was.numel(), p.numel()
            row = self._row(step, self.context.label(p), UPDATE, numbers)
            self.rows.append(replace(row, shape=tuple(p.shape)))

    def _look_at_frozen(self, step: int) -> None:
        held = [
            (name, part)
            for name, p in self.context.names.parameters()
            if not p.requires_grad and (part := sample(p.detach(), SAMPLE)) is not None
        ]
        pairs = [
            (name, part, was)
            for name, part in held
            if (was := self._frozen.get(name)) is not None and was[1].shape == part.shape
        ]
        if pairs:
            changes = norms([_change(was[1], part) for _, part, was in pairs])
            found = to_host([*changes, *norms([was[1] for *_, was in pairs])])
            for i, (name, _, was) in enumerate(pairs):
                if found[i]:
                    relative = found[i] / max(found[len(pairs) + i], 1e-30)
                    self.rows.append(self._row(step, name, MOVED, (relative, was[0])))
        self._frozen = {name: (step, part.clone()) for name, part in held}

    def _row(self, step: int, site: str, port: str, numbers: Sequence[float], *, dtype: str = "") -> Reading:
        return Reading(
            step=step,
            microbatch=max(0, self.context.clock.microbatch - 1),
            phase="optimizer",
            site=site,
            port=port,
            order=self.context.clock.next_order(),
            dtype=dtype,
            op=HEALTH,
            replay=True,
            summary=Summary(n=len(numbers), sketch=tuple(map(float, numbers))),
        )


def _added(total: Tensor | None, grad: Tensor | None) -> Tensor | None:
    if grad is None or total is None:
        return total if grad is None else grad.clone()
    return total.add_(grad)


def _change(before: Tensor, now: Tensor) -> Tensor:
    return _wide(now) - _wide(before)


def _wide(values: Tensor) -> Tensor:
    """Return the values in a format that holds small differences; complex numbers as pairs."""
    values = torch.view_as_real(values) if values.is_complex() else values
    return values if values.dtype == torch.float64 else values.float()
