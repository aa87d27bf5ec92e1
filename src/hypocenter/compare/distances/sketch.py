"""Depth sketch: relative error, cosine and scale of whole tensors from 1 KiB each, with the estimate's own error bar.

With S = Rᵀ D C of a difference D, ‖S‖² / K² has mean ‖D‖² and, for random signs, the relative variance
2/K² + (4/K) / r, where r = (Σσ²)² / Σσ⁴ of D's singular values says how many directions D has: 1 of a rank-one matrix,
many of noise. r is not known; that of S is, and 1/r(S) is about 1/r(D) + 2/K. (Own derivation from the moments of
Gaussian matrices; tests/compare measures how often the interval holds.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.compare.rows import Reals, Sketches
from hypocenter.summary.sketch import K

_DEVIATIONS = 3.0  # standard deviations on both sides
_STORED = 2.0**-23  # of the baseline's norm: a sketch is summed and stored in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of each pair of sketches the estimates of what the tensors would give."""

    relative: Reals
    low: Reals
    high: Reals
    cosine: Reals  # NaN when one side is zero
    scale: Reals  # ⟨candidate, baseline⟩ / ⟨baseline, baseline⟩; NaN when the baseline is zero


def estimate(baseline: Sketches, candidate: Sketches, norm: Reals) -> Estimate:
    """Compare sketches row by row.

    Args:
        baseline, candidate: one sketch a row.
        norm: the baseline's L2 norm, exact; that of the sketch is taken where it is 0 or not finite.
    """
    a, b = baseline.astype(np.float64), candidate.astype(np.float64)
    difference = b - a
    size = np.sqrt(np.einsum("ij,ij->i", difference, difference)) / K
    own = np.sqrt(np.einsum("ij,ij->i", a, a))
    other = np.sqrt(np.einsum("ij,ij->i", b, b))
    inner = np.einsum("ij,ij->i", a, b)
    norm = np.where(np.isfinite(norm) & (norm > 0), norm, own / K)
    spread = _DEVIATIONS * deviation(difference)
    with np.errstate(all="ignore"):
        relative = np.where(size == 0.0, 0.0, size / norm)
        low = np.where(size == 0.0, 0.0, np.maximum(relative / (1.0 + spread) - _STORED, 0.0))
        high = np.where(size == 0.0, 0.0, relative * (1.0 + spread) + _STORED)
        cosine = np.clip(inner / (own * other), -1.0, 1.0)
        scale = inner / (own * own)
    return Estimate(relative=relative, low=low, high=high, cosine=cosine, scale=scale)


def deviation(difference: Reals) -> Reals:
    """Relative standard deviation of the estimate of each difference's norm, from its sketch alone."""
    matrices = difference.reshape(len(difference), K, K)
    gram = np.matmul(matrices.transpose(0, 2, 1), matrices)
    second = np.einsum("ijk,ijk->i", gram, gram)
    first = np.einsum("ijj->i", gram)
    with np.errstate(all="ignore"):
        concentration = np.where(first > 0, second / (first * first), 1.0)  # 1 / r of the sketch
    directions = np.clip(concentration - 2.0 / K, 0.0, 1.0)
    return 0.5 * np.sqrt(2.0 / K**2 + (4.0 / K) * directions)
