"""What an op trace is made of: ops as they ran, tensors from outside, and which values of a tensor are not finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hypocenter.optrace import NAN, NEGINF, POSINF, TracedOp
from hypocenter.tap.gradients import local
from hypocenter.tap.numerics import Numerics
from hypocenter.tap.op_context import OpPlace


@dataclass(slots=True, kw_only=True)
class Node:
    """One op as it ran, with what adjudication needs of it (only where values stopped being finite)."""

    traced: TracedOp
    place: OpPlace
    func: Any = None
    args: Any = None  # captured, detached
    kwargs: Any = None
    outputs: tuple[torch.Tensor, ...] = ()
    positions: tuple[int, ...] = ()  # of these among all tensors that the op gave
    why_not_again: str = ""  # why it must not be executed again: something of what it was given is not here
    numerics: Numerics | None = None  # the settings it ran under
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    scalars: tuple[float, ...] = ()  # Python numbers among its arguments
    unseen: Unseen | None = None  # it stands for something that was not traced
    is_gradient: bool = False  # its results descend from what backward started from: a loss scale multiplies them


@dataclass(slots=True)
class Leaf:
    """A tensor that was there before any traced op."""

    kind: str  # param, buffer, batch, external, constant
    name: str
    tensor: torch.Tensor | None
    bits: int
    is_whole: bool = True  # all of its storage was looked at
    asks_for_gradient: bool = False


@dataclass(slots=True)
class Unseen:
    """Where in the trace a kernel that it does not show has written.

    Attributes:
        after: the op that wrote the storage last before; -1: none did.
        before: the op that read it.
    """

    after: int
    before: str


def nonfinite_bits(tensor: torch.Tensor) -> int:
    """Return which kinds of non-finite values a tensor holds, as bits. One reduction if it is clean."""
    values = local(tensor)
    if values is None:
        return 0
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype.itemsize == 1:
        values = values.float()
    # sum of |x| in float32: non-finite if any element is, and rarely otherwise; then the exact answer is computed
    if torch.isfinite(torch.linalg.vector_norm(values, 2, dtype=_accumulator(values.dtype))):
        return 0
    return (
        NAN * bool(torch.isnan(values).any())
        | POSINF * bool(torch.isposinf(values).any())
        | NEGINF * bool(torch.isneginf(values).any())
    )


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
