"""Parameters that an update broke although its gradients were finite, and steps that are a mere consequence."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.diagnose.evidence import Evidence
from hypocenter.session.check import Check
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.mindspore.seams import Context
from hypocenter.tap.mindspore.gradients import Norms, is_finite
from hypocenter.tap.mindspore.updates import parameters_of

ROTATION = 8  # updates in which each large float32 parameter is looked at once; all each time would cost 0.5 %
LARGE = 1 << 14  # elements


@dataclass(frozen=True, slots=True)
class _Update:
    optimizer: weakref.ref[Any]
    step: int
    was_fine: bool  # loss and gradients were finite
    healthy_steps: int


class ParameterCheck:
    """Looks at parameters after updates.

    Attributes:
        poisoned: parameters are not finite: what fails from now on is a consequence.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.poisoned = False
        self._last: _Update | None = None

    def after(self, optimizer: Any, step: int, check: Check, healthy_steps: int) -> None:
        """An update is over. It may still run: its parameters are read when the next step has used them."""
        was_fine = check.loss_finite and not check.bad_params
        self._last = _Update(weakref.ref(optimizer), step, was_fine, healthy_steps)

    def read(self) -> str:
        """What the last update left. Returns the id of the evidence written, or ''."""
        last, self._last = self._last, None
        optimizer = None if last is None else last.optimizer()
        if last is None or optimizer is None:
            return ""
        parameters = parameters_of(optimizer)
        if not last.was_fine:
            self.poisoned = self.poisoned or bool(self._bad(parameters))
            return ""
        turn = [p for i, p in enumerate(parameters) if _is_cheap(p) or i % ROTATION == last.step % ROTATION]
        bad = self._bad(turn)
        if not bad or self.poisoned:
            self.poisoned = bool(bad)
            return ""
        self.poisoned = True
        labels = tuple(self._context.names.label(p) for p in self._bad(parameters))
        return self._write(last.step, labels, last.healthy_steps)

    def _bad(self, parameters: Sequence[Any]) -> list[Any]:
        norms = Norms(parameters).read()
        return [p for p, n in zip(parameters, norms, strict=True) if not math.isfinite(n) and not is_finite(p)]

    def _write(self, step: int, labels: tuple[str, ...], healthy_steps: int) -> str:
        rank, world_size = self._context.rank()
        evidence = Evidence(
            id=f"step-{step:06d}-nonfinite-param", trigger="nonfinite-param", step=step, rank=rank,
            world_size=world_size, bad_params=labels, n_params=len(labels), healthy_steps=healthy_steps,
            why_not="the optimizer's rule is not replayed in MindSpore",
        )  # fmt: skip
        problem = write_evidence(self._context.rank_directory() / "bundles", evidence)
        if problem:
            self._context.warn(f"the evidence cannot be written: {problem}")
        return evidence.id


def _is_cheap(parameter: Any) -> bool:
    """Small, or of half precision: those updates do break."""
    return parameter.itemsize < 4 or parameter.size < LARGE
