"""Fused attention by blocks of rows: no matrix of rows × keys is ever whole, and only the rows asked for are done.

A row is one query of one head. Rows are numbered through (batch, head, query).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
class Block:
    """Some rows of one head, in the wanted format."""

    at: torch.Tensor  # places of these rows among those asked for
    q: torch.Tensor  # rows × width
    k: torch.Tensor  # keys × width
    v: torch.Tensor
    scores: torch.Tensor  # rows × keys, scaled and masked


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

    @classmethod
    def of(cls, func: Any, args: Any, kwargs: Any) -> Attention | None:
        """Read a call; None: of another operator, or with arguments that are not known."""
        if func.__name__.partition(".")[0] not in _OPS:
            return None
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        q, k, v = (given.get(name) for name in ("query", "key", "value"))
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
        """Of all heads."""
        return math.prod(self.q.shape[:3])

    @property
    def flops_of_row(self) -> float:
        """Two products, and the exponentials."""
        keys = self.k.shape[2]
        return 2.0 * keys * (self.q.shape[3] + self.v.shape[3]) + 16.0 * keys

    @property
    def flops(self) -> float:
        """Of all rows."""
        return self.n_rows * self.flops_of_row

    @property
    def bytes(self) -> float:
        """That are held while rows are done: keys and values of a head, and a few matrices of a block."""
        return 8.0 * (self.k.shape[2] * (self.q.shape[3] + self.v.shape[3])) + 4 * BLOCK_BYTES

    def rows(self, rows: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Those rows of the result, rows × width."""
        out = torch.empty(len(rows), self.v.shape[3], dtype=dtype, device=device)
        for block in self.blocks(rows, dtype, device):
            out[block.at] = block.scores.softmax(-1) @ block.v
        return out

    def blocks(self, rows: torch.Tensor, dtype: torch.dtype, device: torch.device) -> Iterator[Block]:
        """The rows head by head, a bounded number at a time."""
        heads, queries = self.q.shape[1], self.q.shape[2]
        rows, most = rows.cpu(), max(1, BLOCK_BYTES // (8 * max(1, self.k.shape[2])))
        of_head = rows // queries
        for head in of_head.unique().tolist():
            batch, number = divmod(head, heads)
            shared = number // (heads // self.k.shape[1])  # several heads of queries share one of keys
            k, v = (t[batch, shared].detach().to(device, dtype) for t in (self.k, self.v))
            for at in (of_head == head).nonzero()[:, 0].split(most):
                here = (rows[at] % queries).to(self.q.device)
                q = self.q[batch, number].detach()[here].to(device, dtype)
                scores = self._masked(q @ k.mT * self.scale, batch, number, here)
                yield Block(at=at.to(device), q=q, k=k, v=v, scores=scores)

    def _masked(self, scores: torch.Tensor, batch: int, head: int, rows: torch.Tensor) -> torch.Tensor:
        if self.mask is not None:
            shape = (*self.q.shape[:3], self.k.shape[2])
            mask = self.mask.detach().expand(shape)[batch, head][rows.to(self.mask.device)].to(scores.device)
            scores = (
                scores + mask.to(scores.dtype)
                if mask.is_floating_point()
                else scores.masked_fill(~mask.bool(), -torch.inf)
            )
        if self.is_causal:
            keys = torch.arange(self.k.shape[2], device=scores.device)
            scores = scores.masked_fill(keys > rows.to(scores.device)[:, None], -torch.inf)
        return scores
