"""Extremes and sums of a CPU tensor in as few sweeps as its values allow; more only where some are not finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hypocenter.summary.reducers.sampling import Moments
from hypocenter.summary.reducers.torch_exact import CHUNK

_INF = math.inf
_SHORT = 1 << 15  # elements: of more two operators are faster than aminmax, which costs one call less
_TRUSTED_RMS = 1e-15  # below it squares come near the smallest float32 (1.2e-38) and lose bits: sum them in float64


def moments_of(dense: Tensor, n: int) -> Moments:
    """Return the moments of n float16, bfloat16 or float32 values that lie one after the other in memory.

    A long tensor is taken in pieces: the second sweep then finds the piece in cache, and float32 sums stay short. Short
    formats are converted piece by piece: each sweep would convert them again. What that leaves is shown by
    bench/summary.py: a sweep for each question, and none of torch's operators answers two of them faster than two do.
    """
    if n <= 2 * CHUNK:
        return _chunk(dense if dense.dtype is torch.float32 else dense.to(torch.float32), n)
    wide = None if dense.dtype is torch.float32 else torch.empty(CHUNK, dtype=torch.float32, device="cpu")
    chunks = dense.view(-1).split(CHUNK)
    return _added([
        _chunk(chunk if wide is None else wide[: chunk.numel()].copy_(chunk), chunk.numel()) for chunk in chunks
    ])  # fmt: skip


def _chunk(x: Tensor, n: int) -> Moments:
    """Sweeps over float32 values. NaN and infinities show in the extremes."""
    lows, highs = torch.aminmax(x) if n <= _SHORT else (torch.amin(x), torch.amax(x))
    low, high = lows.item(), highs.item()
    if not (low > -_INF and high < _INF):  # also when they are NaN
        return _finite_part(x)
    total = torch.sum(x).item()
    norm = torch.linalg.vector_norm(x).item()
    moments = Moments(low, high, total, norm * norm)
    if not n * _TRUSTED_RMS**2 <= moments.squares < _INF and (low or high):
        return moments._replace(**_wide_sums(x))
    return moments


def _finite_part(x: Tensor) -> Moments:
    n_nan, n_posinf, n_neginf = (int(is_one.sum().item()) for is_one in (x.isnan(), x == _INF, x == -_INF))
    low, high = x.nan_to_num(_INF, _INF, _INF).amin().item(), x.nan_to_num(-_INF, -_INF, -_INF).amax().item()
    sums = _wide_sums(x.nan_to_num(0.0, 0.0, 0.0))
    return Moments(low, high, sums["total"], sums["squares"], n_nan, n_posinf, n_neginf)


def _wide_sums(x: Tensor) -> dict[str, float]:
    """Sums in float64, where float32 ones overflow or lose the squares they add up."""
    wide = x.to(torch.float64)
    return {"total": wide.sum().item(), "squares": (wide * wide).sum().item()}


def _added(parts: list[Moments]) -> Moments:
    return Moments(
        min(part.low for part in parts),
        max(part.high for part in parts),
        sum(part.total for part in parts),
        sum(part.squares for part in parts),
        sum(part.n_nan for part in parts),
        sum(part.n_posinf for part in parts),
        sum(part.n_neginf for part in parts),
    )
