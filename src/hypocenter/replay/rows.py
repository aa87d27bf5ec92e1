"""Some rows of an operator's result, done again without the others: of products, attention, convolutions, gradients.

Rows are numbered through all dimensions of the result but the last; of a convolution a row is a sample, of the gradient
of its weight what belongs to an index of the first dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from hypocenter.replay.attention import Attention
from hypocenter.replay.attention_backward import VALUES, AttentionBackward
from hypocenter.replay.convolution_rows import Part, Samples, part_of_gradient
from hypocenter.replay.effort import Effort, effort

__all__ = ["Part", "Products", "Rows", "as_rows", "by_rows", "chosen"]
SAMPLED = 64  # rows that are looked at beside those that hold bad elements


class Rows(Protocol):
    """An operator that can be done again row by row."""

    @property
    def n(self) -> int:
        """The number of rows of the result."""
        ...

    @property
    def of_one(self) -> Effort:
        """The effort for one row: its FLOPs, and the bytes held whatever the number of rows."""
        ...

    def done(self, rows: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
        """Compute these rows, in `dtype` or in the operator's own format."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Rows of beta · added + alpha · (a @ b), for a and b of two or three dimensions."""

    a: torch.Tensor  # (batch, rows, inner)
    b: torch.Tensor  # (batch, inner, columns)
    added: torch.Tensor | None
    alpha: Any
    beta: Any
    is_of_magnitudes: bool = False

    def of_magnitudes(self) -> Products:
        """Return the same computation with the magnitudes of all values."""
        return replace(self, alpha=abs(self.alpha), beta=abs(self.beta), is_of_magnitudes=True)

    @property
    def n(self) -> int:
        """The number of rows of the result."""
        return self.a.shape[0] * self.a.shape[1]

    @property
    def of_one(self) -> Effort:
        """The effort for one row of a times one matrix."""
        n = self.b.shape[1] * self.b.shape[2]
        return Effort(flops=2.0 * n, bytes=8.0 * (n + self.b.shape[1] + self.b.shape[2]))

    def done(self, rows: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
        """Compute these rows."""
        dtype = dtype or self.a.dtype
        rows, per = rows.cpu(), self.a.shape[1]
        out = torch.empty(len(rows), self.b.shape[2], dtype=dtype, device=device)
        for batch in (rows // per).unique().tolist():
            at = (rows // per == batch).nonzero()[:, 0]
            here = (rows[at] % per).to(self.a.device)
            a, b = self._moved(self.a[batch][here], dtype, device), self._moved(self.b[batch], dtype, device)
            if self.added is None:
                out[at] = a @ b
            else:
                shape = (self.a.shape[0], per, self.b.shape[2])
                added = self._moved(self.added.expand(shape)[batch][here], dtype, device)
                out[at] = torch.addmm(added, a, b, beta=self.beta, alpha=self.alpha)
        return out

    def _moved(self, tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        tensor = tensor.to(device, dtype)
        return tensor.abs() if self.is_of_magnitudes else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Rows of attention: its queries."""

    call: Attention

    @property
    def n(self) -> int:
        """The number of queries over all heads."""
        return self.call.n_rows

    @property
    def of_one(self) -> Effort:
        """The effort for one query."""
        return Effort(flops=self.call.flops_of_row, bytes=self.call.bytes)

    def done(self, rows: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
        """Compute these rows. Fused kernels add up in float32, and only their result is in a 16-bit format."""
        inner = dtype or torch.promote_types(self.call.q.dtype, torch.float32)
        return self.call.rows(rows, inner, device).to(dtype or self.call.q.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryGradients:
    """Rows of one of the gradients of attention."""

    call: AttentionBackward
    result: int

    @property
    def n(self) -> int:
        """The number of queries or keys over all heads."""
        return self.call.n_rows(self.result)

    @property
    def of_one(self) -> Effort:
        """The effort for one query or key."""
        return Effort(flops=self.call.flops_of_row(self.result), bytes=self.call.bytes)

    def done(self, rows: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
        """Compute these rows, added up as fused kernels do."""
        own = self.call.forward.q.dtype
        inner = dtype or torch.promote_types(own, torch.float32)
        return self.call.rows(self.result, rows, inner, device).to(dtype or own)


def by_rows(func: Any, args: Any, kwargs: Any, outputs: Any, result: int = 0) -> Rows | None:
    """Return how to do single rows of one of its results again; None where that is not known."""
    name = func.__name__.partition(".")[0]
    backward = AttentionBackward.of(func, args, kwargs)
    if backward is not None and result <= VALUES:
        return None if backward.forward.is_random else QueryGradients(call=backward, result=result)
    if name == "convolution_backward":
        return part_of_gradient(func, args, effort(func, args, kwargs, outputs), result)
    if result:
        return None
    attention = Attention.of(func, args, kwargs)
    if attention is not None:
        return None if attention.is_random else Queries(call=attention)
    if name == "convolution" and args[0].dim() > 2 and args[0].shape[0]:
        return Samples(func=func, args=tuple(args), n_sliced=1, whole=effort(func, args, kwargs, outputs))
    added, factors = (args[0], args[1:3]) if name in ("addmm", "baddbmm") else (None, args[:2])
    if name not in ("mm", "bmm", "addmm", "baddbmm") or any(not isinstance(t, torch.Tensor) for t in factors):
        return None
    a, b = (t.detach() if t.dim() == 3 else t.detach()[None] for t in factors)
    return Products(
        a=a, b=b, added=None if added is None else added.detach(), alpha=kwargs.get("alpha", 1),
        beta=kwargs.get("beta", 1),
    )  # fmt: skip


def chosen(bad: torch.Tensor, n: int, most: int, others_at_most: int = SAMPLED) -> torch.Tensor:
    """Choose at most `most` of n rows: those with bad elements first, then some of the others, spread evenly.

    Args:
        bad: numbers of the rows that hold bad elements, rising.
        others_at_most: how many of the others.
    """
    bad = bad.cpu()
    first = bad[_spread(len(bad), most)]
    is_good = torch.ones(n, dtype=torch.bool, device="cpu")
    is_good[bad] = False
    others = is_good.nonzero()[:, 0]
    return torch.cat([first, others[_spread(len(others), min(most - len(first), others_at_most))]]).sort().values


def as_rows(tensor: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Return the operator's result as a matrix with a line for each row."""
    return tensor.reshape(rows.n, math.prod(tensor.shape) // max(1, rows.n))


def _spread(n: int, most: int) -> torch.Tensor:
    if n <= most:
        return torch.arange(n, device="cpu")
    return torch.linspace(0, n - 1, max(0, most), device="cpu").round().long().unique()
