"""The gradients of fused attention by blocks of rows: queries for the gradient of the queries, keys for the others.

P = exp(scores - logsumexp), D = rowsum(grad ∘ out), dS = P ∘ (grad · vᵀ - D); the gradients are scale · dS · k,
scale · dSᵀ · q and Pᵀ · grad (Dao et al., FlashAttention, NeurIPS 2022, appendix B.2). What forward gave, `out` and
`logsumexp`, is taken as it is: it is what the operator was given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hypocenter.replay.attention import Attention, Head, by_head, taken

QUERIES, KEYS, VALUES = range(3)  # the operator's results: gradients of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A head, or a part of it, with what came back to its queries, in the wanted format."""

    at: torch.Tensor  # places, among the rows asked for, of this tile's queries or keys
    head: Head
    grad: torch.Tensor  # queries × width: of the result
    out: torch.Tensor
    lse: torch.Tensor  # queries × 1

    @property
    def shares(self) -> torch.Tensor:
        """The weights of attention, queries × keys; 0 where a key is hidden, also for a query that sees none."""
        return (self.head.scores - self.lse).exp().masked_fill(torch.isneginf(self.head.scores), 0.0)

    def gradient(self, result: int, scale: float) -> torch.Tensor:
        """Return what the tile adds to the rows of a result."""
        shares = self.shares
        if result == VALUES:
            return shares.mT @ self.grad
        inner = shares * (self.grad @ self.head.v.mT - (self.grad * self.out).sum(-1, keepdim=True))
        return scale * (inner @ self.head.k if result == QUERIES else inner.mT @ self.head.q)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBackward:
    """The arguments of the backward of a fused attention."""

    forward: Attention
    grad: torch.Tensor  # (batch, heads, queries, width of the values)
    out: torch.Tensor
    lse: torch.Tensor  # (batch, heads, queries): log Σ exp of the scores, natural

    @classmethod
    def of(cls, func: Any, args: Any, kwargs: Any) -> AttentionBackward | None:
        """Read a call; return None for another operator, or for arguments that are not known."""
        name = func.__name__.partition(".")[0]
        if not Attention.knows(name.removesuffix("_backward")) or not name.endswith("_backward"):
            return None
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        forward = Attention.reading(given)
        grad, out, lse = given.get("grad_out", given.get("grad_out_")), given.get("out"), given.get("logsumexp")
        if forward is None or not all(isinstance(t, torch.Tensor) and t.numel() for t in (grad, out, lse)):
            return None
        lse = lse.detach().reshape(*lse.shape[:2], -1)[..., : forward.q.shape[2]]  # some kernels pad it
        wanted = (*forward.q.shape[:3], forward.v.shape[3])
        if grad.shape != wanted or out.shape != wanted or lse.shape != wanted[:3]:
            return None
        return cls(forward=forward, grad=grad, out=out, lse=lse)

    @property
    def shared(self) -> int:
        """How many heads of queries share one of keys."""
        return self.forward.q.shape[1] // self.forward.k.shape[1]

    def n_rows(self, result: int) -> int:
        """Return the number of rows of a result, over all heads."""
        return math.prod((self.forward.q if result == QUERIES else self.forward.k).shape[:3])

    def across(self, result: int) -> int:
        """Return how many terms are added up in an element of a result."""
        return self.forward.k.shape[2] if result == QUERIES else self.shared * self.forward.q.shape[2]

    def flops_of_row(self, result: int) -> float:
        """Return the FLOPs of one row: three products, or two for the values, and the exponentials."""
        width = self.forward.q.shape[3]
        widths = width + self.forward.v.shape[3] + (0 if result == VALUES else width)
        return self.across(result) * (2.0 * widths + 16.0)

    @property
    def flops(self) -> float:
        """The FLOPs of all three gradients."""
        return sum(self.n_rows(result) * self.flops_of_row(result) for result in (QUERIES, KEYS, VALUES))

    @property
    def bytes(self) -> float:
        """The bytes held while rows are done: all of a head, and a few matrices of a block."""
        queries = 8.0 * self.forward.q.shape[2] * (self.forward.q.shape[3] + 2 * self.forward.v.shape[3])
        return self.forward.bytes + queries

    def rows(self, result: int, rows: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Compute these rows of a result, as [rows, width]."""
        width = (self.forward.v if result == VALUES else self.forward.q).shape[3]
        out = torch.zeros(len(rows), width, dtype=dtype, device=device)
        for tile in self.tiles(result, rows, dtype, device):
            out[tile.at] += tile.gradient(result, self.forward.scale)
        return out

    def tiles(self, result: int, rows: torch.Tensor, dtype: torch.dtype, device: torch.device) -> Iterator[Tile]:
        """Yield what rows of a result are made of: for keys that heads share, a tile of each head, to be added up."""
        _, heads, queries, _ = self.forward.q.shape
        if result == QUERIES:
            for number, at, here in by_head(rows, queries, self.forward.k.shape[2]):
                yield self._tile(at, *divmod(number, heads), dtype, device, queries=here)
            return
        for number, at, here in by_head(rows, self.forward.k.shape[2], queries):
            batch, head = divmod(number, heads // self.shared)
            for each in range(head * self.shared, (head + 1) * self.shared):
                yield self._tile(at, batch, each, dtype, device, keys=here)

    def _tile(
        self,
        at: torch.Tensor,
        batch: int,
        head: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        queries: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
    ) -> Tile:
        part = self.forward.head(batch, head, dtype, device, queries=queries, keys=keys)
        grad, out, lse = (taken(t[batch, head], queries, dtype, device) for t in (self.grad, self.out, self.lse))
        return Tile(at=at.to(device), head=part, grad=grad, out=out, lse=lse[:, None])
