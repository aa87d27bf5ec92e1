"""A gradient is that of the loss alone: MindSpore differentiates the sum of all that a function gives. For HC251.

What a function gives for the log beside its loss (logits) is left out by `has_aux=True`. Without it each element of
that is added to the loss. Several numbers may be losses that are meant to be added up: told is what has two dimensions
or more, where a replay that differentiates the first output alone comes to another gradient.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.detect import relation_rows as rows
from hypocenter.nouns import replace
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.host import is_floating
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context, Part
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.mindspore.autograd import has_gradient, leaf_of, leaves
from hypocenter.tap.mindspore.gradients import host
from hypocenter.tap.mindspore.tape import GradCall
from hypocenter.tap.source import source_of

LAST, TRIES = 64, 4  # step; updates at which a micro-batch is done again for it
_MATTERS = 1e-3  # of the gradient of the loss
_ALONE = SimpleNamespace(has_aux=True, sens_param=False)  # the operation that differentiates the first output
_REMEDY = "pass has_aux=True (of a GradOperation: give back the loss alone), or put ops.stop_gradient around the others"


class BesideLoss(Part):
    """Looks at what differentiated functions give; on one rank, and while steps may be done again."""

    until = LAST

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether replays of healthy steps are wanted."""
        return config.looks_at_relations

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._replayer = Replayer(context.names, context.paused)
        self._is_due = schedule.parse("doubling")
        self._n_left = TRIES
        self._seen: tuple[GradCall, list[str]] | None = None  # the first of the step under way

    def forward_done(self, call: GradCall) -> None:
        """Note which outputs beside the loss depend on trained parameters, while there is a graph of them."""
        if self._seen or not self._n_left or not self._is_due(self.context.clock.step) or not call.has_value:
            return
        outputs: list[Any] = list(call.outputs) if isinstance(call.outputs, (tuple, list)) else []
        is_loss = bool(outputs) and isinstance(outputs[0], ms.Tensor) and outputs[0].size == 1
        if not is_loss or call.has_sens or self.context.rank()[1] > 1:
            return
        given = {at: t for at, t in enumerate(outputs) if at and _counts(t)}
        if any(t.ndim > 1 for t in given.values()):
            trained = {leaf_of(p) for _, p in self.context.names.parameters() if p.requires_grad} - {None}
            given = {at: t for at, t in given.items() if leaves(t) & trained}
        if any(t.ndim > 1 for t in given.values()):
            self._seen = call, [f"output {at} of shape {tuple(t.shape)}" for at, t in given.items()]

    def before_update(self, update: Update) -> None:
        """Compare its gradient with that of the first output alone."""
        seen, self._seen = self._seen, None
        if seen is None or getattr(seen[0].operation, "has_aux", False) or not update.check.is_finite:
            return
        call, others = seen
        self._n_left -= 1
        try:
            with self.context.audits.spending():
                rest = self._rest(call)
        except ReplayImpossible:
            return
        if rest <= _MATTERS:
            return
        self._n_left = 0
        code = getattr(_function(call.fn), "__code__", None)
        row = number_row("", rows.LOSS, update.step, self.context.clock.next_order(), rest)
        size = (
            "all of the gradient" if math.isinf(rest) else f"a gradient {rest:.3g} times as large as that of the loss"
        )
        why = f"MindSpore differentiates the sum of all outputs: {', '.join(others)} add {size}"
        names = ("what is differentiated is not the loss alone, but the sum of all outputs", why, _REMEDY)
        source = None if code is None else source_of(code.co_filename, code.co_firstlineno, code.co_name)
        self.rows.append(replace(row, op="HC251", source=source, names=names))

    def end_step(self, step: int) -> None:
        """Let go of a step that was skipped."""
        self._seen = None

    def _rest(self, call: GradCall) -> float:
        """Return how large the gradient of the other outputs is, relative to that of the first."""
        of_first = dataclasses.replace(call, operation=_ALONE)
        alone, whole, again = (
            [host(g).astype(np.float64) for g in self._replayer.run(each, must_leave_no_trace=True).grads]
            for each in (of_first, call, of_first)
        )
        size, rest, noise = (_distance(alone, [0.0] * len(alone)), _distance(whole, alone), _distance(again, alone))
        if noise > rest / 10:
            raise ReplayImpossible("it gives something else each time")
        return rest / size if size else math.inf if rest else 0.0


def _counts(output: Any) -> bool:
    return isinstance(output, ms.Tensor) and is_floating(output) and has_gradient(output)


def _distance(some: Sequence[Any], others: Sequence[Any]) -> float:
    return math.sqrt(sum(float(np.square(a - b).sum()) for a, b in zip(some, others, strict=True)))


def _function(fn: Any) -> Callable[..., Any]:
    return fn.construct if hasattr(fn, "construct") else fn
