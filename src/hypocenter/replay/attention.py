"""Fused attention by blocks of rows: no matrix of rows × keys is ever whole, and only the rows asked for are done.

A row is one query of one head. Rows are numbered through (batch, head, query).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

BLOCK_BYTES = 1 << 26  # of one rows × keys matrix in float64
_OPS = frozenset(
    f"_scaled_dot_product_{kind}"
    for kind in (
        "flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention",
        "fused_attention_overrideable",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One head, or some queries of it with some of its keys, in the wanted format."""

    q: torch.Tensor  # queries × width
    k: torch.Tensor  # keys × width
    v: torch.Tensor
    scores: torch.Tensor  # queries × keys, scaled and masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The arguments of a fused attention."""

    q: torch.Tensor  # (batch, heads, queries, width)
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    is_causal: bool
    scale: float
    is_random: bool  # dropout

    @staticmethod
    def knows(name: str) -> bool:
        """Return whether this is the name of a fused attention."""
        return name in _OPS

    @classmethod
    def of(cls, func: Any, args: Any, kwargs: Any) -> Attention | None:
        """Read a call; return None for another operator, or for arguments that are not known."""
        if not cls.knows(func.__name__.partition(".")[0]):
            return None
        return cls.reading(dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs)

    @classmethod
    def reading(cls, given: Mapping[str, Any]) -> Attention | None:
        """Read the arguments by their names; return None if they are not known."""
        q, k, v = cast("tuple[Any, ...]", tuple(given.get(name) for name in ("query", "key", "value")))
        if not all(isinstance(t, torch.Tensor) and t.dim() == 4 for t in (q, k, v)) or q.shape[1] % k.shape[1]:
            return None
        mask = given.get("attn_mask", given.get("attn_bias"))
        scale = given.get("scale")
        return cls(
            q=q, k=k, v=v, mask=mask if isinstance(mask, torch.Tensor) else None,
            is_causal=bool(given.get("is_causal", False)), is_random=float(given.get("dropout_p") or 0.0) > 0.0,
            scale=1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
        )  # fmt: skip

    @property
    def n_rows(self) -> int:
        """The number of rows of the result, over all heads."""
        return math.prod(self.q.shape[:3])

    @property
    def flops_of_row(self) -> float:
        """The FLOPs of one row: two products, and the exponentials."""
        keys = self.k.shape[2]
        return 2.0 * keys * (self.q.shape[3] + self.v.shape[3]) + 16.0 * keys

    @property
    def flops(self) -> float:
        """The FLOPs of all rows."""
        return self.n_rows * self.flops_of_row

    @property
    def bytes(self) -> float:
        """The bytes held while rows are done: keys and values of a head, and a few matrices of a block."""
        return 8.0 * (self.k.shape[2] * (self.q.shape[3] + self.v.shape[3])) + 4 * BLOCK_BYTES

    def rows(self, rows: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Compute these rows of the result, as [rows, width]."""
        out = torch.empty(len(rows), self.v.shape[3], dtype=dtype, device=device)
        for at, block in self.blocks(rows, dtype, device):
            out[at] = block.scores.softmax(-1) @ block.v
        return out

    def blocks(
        self, rows: torch.Tensor, dtype: torch.dtype, device: torch.device
    ) -> Iterator[tuple[torch.Tensor, Head]]:
        """Yield the rows head by head, a bounded number at a time, with their places among those asked for."""
        for number, at, here in by_head(rows, self.q.shape[2], self.k.shape[2]):
            yield at.to(device), self.head(*divmod(number, self.q.shape[1]), dtype, device, queries=here)

    def head(
        self,
        batch: int,
        head: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        queries: torch.Tensor | None = None,
        keys: torch.Tensor | None = None,
    ) -> Head:
        """Return a head with all its queries and keys, or those that are given."""
        shared = head // (self.q.shape[1] // self.k.shape[1])  # several heads of queries share one of keys
        q = taken(self.q[batch, head], queries, dtype, device)
        k, v = (taken(t[batch, shared], keys, dtype, device) for t in (self.k, self.v))
        queries = torch.arange(self.q.shape[2], device="cpu") if queries is None else queries
        keys = torch.arange(self.k.shape[2], device="cpu") if keys is None else keys
        scores = self._masked(q @ k.mT * self.scale, batch, head, queries, keys)
        return Head(q=q, k=k, v=v, scores=scores)

    def _masked(
        self, scores: torch.Tensor, batch: int, head: int, queries: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        if self.mask is not None:
            mask = self.mask.detach().expand(*self.q.shape[:3], self.k.shape[2])[batch, head]
            mask = mask[queries.to(mask.device)][:, keys.to(mask.device)].to(scores.device)
            scores = (
                scores + mask.to(scores.dtype)
                if mask.is_floating_point()
                else scores.masked_fill(~mask.bool(), -torch.inf)
            )
        if self.is_causal:
            queries, keys = queries.to(scores.device), keys.to(scores.device)
            scores = scores.masked_fill(keys > queries[:, None], -torch.inf)
        return scores


def by_head(rows: torch.Tensor, of_head: int, across: int) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield rows, numbered through all heads, head by head, so few at a time that a matrix of theirs is a block.

    Args:
        of_head: rows that a head has.
        across: columns of the matrix that is made of each row.

    Yields:
        The number of the head, places among `rows`, rows of the head.
    """
    rows, most = rows.cpu(), max(1, BLOCK_BYTES // (8 * max(1, across)))
    heads = rows // of_head
    for head in heads.unique().tolist():
        for at in (heads == head).nonzero()[:, 0].split(most):
            yield head, at, rows[at] % of_head


def taken(tensor: torch.Tensor, rows: torch.Tensor | None, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return all rows of a matrix, or the given ones, in another format and place."""
    tensor = tensor.detach()
    return (tensor if rows is None else tensor[rows.to(tensor.device)]).to(device, dtype)
