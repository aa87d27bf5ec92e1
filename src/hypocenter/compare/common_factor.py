"""Gradients that all differ by one factor: clipping, averaging or unscaling; and those that stand out of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.compare.judged import Judged
from hypocenter.compare.rows import Reals

_MOST = 0.6  # of all gradients must share the factor
_FEWEST = 4  # gradients, below which a shared factor says nothing
_NEAR = 2.0**-10  # relative: a factor this near to another is the same


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFactor:
    """Of the gradients of a step."""

    factor: float
    outliers: tuple[int, ...]  # rows that differ by more than the factor, in order
    n: int  # gradients that share it


def common_factor(judged: Judged) -> CommonFactor | None:
    """The factor that most gradients differ by; None when there is none, or it is 1."""
    is_gradient = (judged.phase == "grad") & (judged.port == "grad")
    at = np.flatnonzero(
        is_gradient & np.isfinite(judged.distances.relative) & (judged.aligned.baseline.values["sumsq"] > 0)
    )
    if len(at) < _FEWEST:
        return None
    scale, residual = _parts(judged, at)
    factor = float(np.median(scale))
    if not np.isfinite(factor) or factor == 0.0 or abs(factor - 1.0) <= _NEAR:
        return None
    off = np.maximum(np.abs(scale / factor - 1.0), residual / abs(factor))
    shares = off <= _NEAR + 4.0 * judged.floors.relative[at]
    if shares.mean() < _MOST:
        return None
    out = at[~shares & judged.differs[at]]
    return CommonFactor(factor=factor, outliers=tuple(out.tolist()), n=int(shares.sum()))


def _parts(judged: Judged, at: np.ndarray) -> tuple[Reals, Reals]:
    """Of each row the candidate as a multiple of the baseline, and what is left: both in units of the baseline's norm.

    Where only summaries are known the multiple is that of the norms, and nothing is known to be left.
    """
    a, b = judged.aligned.baseline.values["sumsq"][at], judged.aligned.candidate.values["sumsq"][at]
    ratio = np.sqrt(b / a)
    scale, cosine = judged.distances.scale[at], judged.distances.cosine[at]
    left = ratio**2 * np.maximum(1.0 - cosine**2, 0.0)
    is_known = np.isfinite(scale) & np.isfinite(cosine)
    return np.where(is_known, scale, ratio), np.sqrt(np.where(is_known, left, 0.0))
