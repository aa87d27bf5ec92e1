"""Parameters that an update broke although its gradients were finite, and steps that are a mere consequence."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.diagnose.evidence import Evidence
from hypocenter.nouns import Reading
from hypocenter.session.check import Check, norm_reading
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.mindspore.seams import Context
from hypocenter.tap.mindspore.gradients import Norms, dtype_name, is_finite
from hypocenter.tap.mindspore.updates import parameters_of

ROTATION = 8  # updates in which each large float32 parameter is looked at once; all each time would cost 0.5 %
LARGE = 1 << 14  # elements


@dataclass(frozen=True, slots=True)
class _Update:
    optimizer: weakref.ref[Any] | None  # None: it runs inside a graph, and is not known
    step: int
    was_fine: bool  # loss and gradients were finite
    healthy_steps: int


class ParameterCheck:
    """Looks at the parameters after updates.

    Attributes:
        poisoned: parameters are not finite: what fails from now on is a consequence.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.poisoned = False
        self._last: _Update | None = None
        self._in_graph: _Update | None = None

    def after(self, optimizer: Any, step: int, check: Check, healthy_steps: int) -> None:
        """Note an update, which may still run: its parameters are read when the next step has used them."""
        was_fine = check.loss_finite and not check.bad_params
        self._last = _Update(None if optimizer is None else weakref.ref(optimizer), step, was_fine, healthy_steps)

    def after_graph(self, optimizer: Any, step: int, check: Check, healthy_steps: int) -> str:
        """Look at the parameters after a step that ran as one graph: nothing else but a loss is seen of it.

        Args:
            optimizer: in the graph; None: it is not known.

        Returns:
            The id of the evidence written, or ''.
        """
        self.after(optimizer, step, check, healthy_steps)
        self._in_graph = self._last
        return self.read()

    def at_end(self) -> tuple[str, list[Reading]]:
        """Look once more at all parameters that graphs updated; return an evidence's id and rows of their norms."""
        last = self._in_graph
        if last is None:
            return self.read(), []
        parameters = self._parameters_of(last)
        found = self._blamed(last, parameters) if not self.poisoned and last.was_fine else ""
        if self.poisoned:
            return found, []  # which are not finite was told when they became so
        norms = Norms(parameters).read()
        return found, [self._row(p, norm, last.step) for p, norm in zip(parameters, norms, strict=True)]

    def _row(self, parameter: Any, norm: float, step: int) -> Reading:
        is_bad = not math.isfinite(norm) and not is_finite(parameter)
        return norm_reading(
            self._context.names.label(parameter),
            norm,
            step,
            self._context.clock.next_order(),
            is_bad=is_bad,
            n=int(parameter.size),
            dtype=dtype_name(parameter),
            shape=tuple(parameter.shape),
            phase="param",
            port="value",
        )

    def _parameters_of(self, update: _Update) -> Sequence[Any]:
        """Return the optimizer's parameters, or, where it is not known, those of the known models."""
        if update.optimizer is None:
            return [p for _, p in self._context.names.parameters() if p.requires_grad]
        optimizer = update.optimizer()
        return [] if optimizer is None else parameters_of(optimizer)

    def read(self) -> str:
        """Read what the last update left. Returns the id of the evidence written, or ""."""
        last, self._last = self._last, None
        parameters = [] if last is None else self._parameters_of(last)
        if last is None or not parameters:
            return ""
        if not last.was_fine:
            self.poisoned = self.poisoned or bool(self._bad(parameters))
            return ""
        turn = [p for i, p in enumerate(parameters) if _is_cheap(p) or i % ROTATION == last.step % ROTATION]
        if self.poisoned:
            self.poisoned = bool(self._bad(turn))
            return ""
        return self._blamed(last, turn)

    def _blamed(self, last: _Update, parameters: Sequence[Any]) -> str:
        if not self._bad(parameters):
            return ""
        parameters, self.poisoned = self._parameters_of(last), True
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
        write_evidence(self._context.rank_directory() / "bundles", evidence, self._context.warn)
        return evidence.id


def _is_cheap(parameter: Any) -> bool:
    """Return whether a parameter is looked at each time: it is small, or of half precision, whose updates do break."""
    return parameter.itemsize < 4 or parameter.size < LARGE
