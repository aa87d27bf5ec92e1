"""What a traced replay can be asked, whatever framework ran it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hypocenter.diagnose.evidence import OpFacts, Rerun, TensorFacts
from hypocenter.optrace import TracedOp


@dataclass(frozen=True, slots=True, kw_only=True)
class BadValues:
    """Elements of a tensor that are not finite."""

    chips: tuple[str, ...]  # "+inf ×12"
    indices: tuple[tuple[int, ...], ...]  # of the first ones
    shape: tuple[int, ...]  # of the tensor
    limit: float | None  # largest value of its format
    mask: Any  # where they are: an array or tensor of bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLeaf:
    """A tensor that was there before any op, and not finite."""

    facts: TensorFacts
    kind: str  # param, buffer, batch, external
    bad: BadValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Reruns:
    """An op executed again on its captured inputs."""

    float64: Rerun
    again: Rerun  # on the same device
    cpu: Rerun


class Witness(Protocol):
    """A traced micro-batch. Ops and leaves are asked for by their index in the trace."""

    def trace(self) -> Sequence[TracedOp]:
        """Return the ops as plain data."""
        ...

    def op(self, index: int, *, detailed: bool = True) -> OpFacts:
        """Describe an op as plain facts, with those of its tensors if its arguments were captured."""
        ...

    def leaf(self, index: int) -> BadLeaf | None:
        """Describe a leaf that holds bad values; None when its values are not known."""
        ...

    def bad_output(self, index: int) -> BadValues | None:
        """Describe the first output of an op that is not finite; None when its outputs were not kept."""
        ...

    def rerun(self, index: int) -> Reruns:
        """Execute the op again, in several ways."""
        ...

    def measured(self, index: int) -> dict[str, float | str]:
        """Return named numbers about its operands that causes need beyond summaries."""
        ...

    def upstream_grad_zero(self, index: int) -> bool | None:
        """Return whether the gradient that came into a backward op is exactly 0 at every bad element, or None."""
        ...
