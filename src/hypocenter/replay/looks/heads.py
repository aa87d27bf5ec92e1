"""Attention, by head: the largest logit, and the entropy of what it attends to.

A softmax is attention if its result is multiplied with values; a fused operator if it takes query, key and value. There
the logits are computed again, in float32, from its operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hypocenter.detect.health_rows import ENTROPY, LOGITS
from hypocenter.replay.looking import Call, Found, look

_FARTHEST = 9000.0  # below the largest of its row: a mask (some models write -10,000)
_ELEMENTS = 1 << 24  # of the logits of one fused operator that are computed; of more every n-th query


@look("heads")
def find(call: Call) -> Iterator[Found]:
    """Yield two numbers for each head of an attention: its largest logit and the entropy of its weights."""
    op = call.step.op
    if not call.of_module:
        return
    if op in ("_softmax", "_safe_softmax"):
        x = call.given["self"]
        is_last = call.given["dim"] in (-1, x.dim() - 1)
        if x.dim() >= 3 and is_last and call.trace.descends(x, "bmm", "baddbmm") is not None:
            is_attention = _Used(call)
            yield from _found(call, *_of_heads(x, call.outputs[0]), is_attention)
    elif op in ("bmm", "baddbmm", "_grouped_mm"):
        for name in ("self", "batch1"):
            softmax = call.trace.descends(call.given[name], "_softmax", "_safe_softmax") if name in call.given else None
            if softmax is not None:
                softmax.is_named = True
    elif "attention" in op and isinstance(call.given.get("query"), Tensor):
        maximum, entropy = _of_fused(call)
        yield from _found(call, maximum, entropy, None)


class _Used:
    """Tell whether a softmax turned out to be attention."""

    def __init__(self, call: Call) -> None:
        self._step = call.step

    def __call__(self) -> bool:
        return self._step.is_named


def _found(call: Call, maximum: Tensor, entropy: Tensor, is_meant: _Used | None) -> Iterator[Found]:
    dtype = str(call.given["self" if is_meant else "query"].dtype).removeprefix("torch.")
    for port, values in ((LOGITS, maximum), (ENTROPY, entropy)):
        yield Found(step=call.step, port=port, values=values, dtype=dtype, is_meant=is_meant or (lambda: True))


def _of_heads(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return both numbers from logits [..., heads, queries, keys] and their softmax; without heads all count as one."""
    heads = x.dim() - 3 if x.dim() >= 4 else None
    largest, sums, counts = _parts(x, p)
    dims = [d for d in range(largest.dim()) if d != heads]
    return largest.amax(dims).reshape(-1), (sums.sum(dims) / counts.sum(dims).clamp_min(1)).reshape(-1)


def _parts(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each query its largest logit, its entropy over a uniform choice's, and whether it had a choice."""
    largest = x.amax(-1)
    n = (x > (largest - _FARTHEST).unsqueeze(-1)).sum(-1)
    entropy = torch.special.entr(p.float()).sum(-1)
    has_choice = (n > 1) & largest.isfinite() & (largest > -_FARTHEST)  # else it is masked as a whole
    share = torch.where(has_choice, entropy / n.clamp_min(2).float().log(), torch.zeros_like(entropy))
    return torch.where(largest > -_FARTHEST, largest, -math.inf).float(), share, has_choice.float()


def _of_fused(call: Call) -> tuple[Tensor, Tensor]:
    given = call.given
    q, k = given["query"], given["key"]
    mask = given["attn_mask"] if "attn_mask" in given else given.get("attn_bias")
    scale = given.get("scale") or 1.0 / math.sqrt(q.shape[-1])
    if k.shape[1] != q.shape[1]:  # grouped queries
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    rows = torch.arange(0, q.shape[2], -(-q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] // _ELEMENTS), device="cpu")
    rows = rows.to(q.device)
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for b in range(q.shape[0]):
        x = q[b][:, rows].float() @ k[b].float().transpose(-1, -2) * scale
        if given.get("is_causal"):
            later = torch.arange(k.shape[2], device=q.device) > rows.unsqueeze(-1)
            x = x.masked_fill(later, -math.inf)
        if isinstance(mask, Tensor):
            part = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])[b][:, rows]
            x = x.masked_fill(~part, -math.inf) if part.dtype == torch.bool else x + part.float()
        largest, shares, counts = _parts(x, torch.softmax(x, -1).nan_to_num())
        found.append((largest.amax(-1), shares.sum(-1), counts.sum(-1)))
    largest, shares, counts = (torch.stack(part) for part in zip(*found, strict=True))
    return largest.amax(0), shares.sum(0) / counts.sum(0).clamp_min(1)
