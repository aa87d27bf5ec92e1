"""Two tensors in, one verdict out: read part by part, so that memory does not grow with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.weights import elements
from hypocenter.compare.weights.checkpoint import Box, Tensor, boxes

TensorVerdict = Literal["equal", "equal-after-cast", "within-ulp", "differs", "cannot-tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far two tensors of one shape are apart."""

    verdict: TensorVerdict
    n: int = 0
    n_differ: int = 0  # elements whose value differs after a cast to the coarser format
    max_abs: float = 0.0
    max_rel: float = 0.0  # |candidate - baseline| / |baseline|, where that is not 0
    relative_l2: float = 0.0
    cosine: float | None = None
    max_ulp: int | None = None  # of the coarser format
    n_nonfinite: int = 0  # elements that are finite on one side only, or infinite on both with another sign
    first_index: tuple[int, ...] | None = None  # in the candidate's layout
    first_values: tuple[float, float] | None = None
    why: str = ""


def compare(a: Tensor, b: Tensor, *, ulp: int) -> Difference:
    """Compare tensors of the same shape.

    Args:
        a: of the baseline, in the candidate's layout.
        b: of the candidate.
        ulp: so many units in the last place of the coarser format count as agreement.
    """
    floating = elements.is_floating(a.dtype), elements.is_floating(b.dtype)
    if floating[0] != floating[1] or (a.dtype != b.dtype and not all(floating)):
        why = f"{a.dtype} against {b.dtype}: not the same kind of number"
        return Difference(verdict="cannot-tell", n=a.n, why=why)
    sums = _Sums(a.dtype, b.dtype)
    for box in boxes(a.shape, tiled=a.is_turned or b.is_turned):
        sums.add(a.read(box), b.read(box), box)
    return sums.difference(a.n, ulp)


class _Sums:
    """Counts and extremes over the parts that were read so far."""

    def __init__(self, a: str, b: str) -> None:
        self.dtypes = a, b
        self.form = elements.coarser(a, b) if elements.is_floating(a) else a
        self.has_same_bits = True
        self.n_differ = self.n_nonfinite = self.max_ulp = 0
        self.max_abs = self.max_rel = self.squares = 0.0
        self.products = np.zeros(3)  # of baseline with itself, candidate with itself, both
        self.first: tuple[tuple[int, ...], tuple[float, float]] | None = None

    def add(self, a: NDArray[Any], b: NDArray[Any], box: Box) -> None:
        same = self.dtypes[0] == self.dtypes[1] and _are_bits_equal(a, b)
        self.has_same_bits = self.has_same_bits and same
        if same:
            self.products += _dot(*[_finite(elements.values(a, self.dtypes[0]))] * 2)
            return
        x, y = (elements.values(bits, dtype) for bits, dtype in zip((a, b), self.dtypes, strict=True))
        x, y = (np.asarray(v, v.dtype if v.dtype.kind in "fc" else np.float64) for v in (x, y))
        good = np.isfinite(x) & np.isfinite(y)
        p, q = (np.where(good, v, 0) for v in (x, y))
        self.products += [_dot(p, p), _dot(q, q), _dot(p, q)]
        apart = self._apart(a, b, x, y, good)
        self.n_differ += int(apart.sum())
        self.n_nonfinite += int((apart & ~good).sum())
        gap = np.abs(q - p)
        self.max_abs = max(self.max_abs, float(gap.max(initial=0.0)))
        self.squares += _dot(gap, gap)
        with np.errstate(over="ignore"):
            size = np.abs(p)
            self.max_rel = max(self.max_rel, float((gap[size > 0] / size[size > 0]).max(initial=0.0)))
        if self.first is None and apart.any():
            at = np.unravel_index(int(apart.argmax()), apart.shape)
            index = tuple(int(i) + start for i, (start, _) in zip(at, box, strict=True))
            self.first = index, (float(np.real(x[at])), float(np.real(y[at])))

    def _apart(self, a: Any, b: Any, x: Any, y: Any, good: Any) -> NDArray[np.bool_]:
        """Return where the values differ in the coarser format."""
        if not elements.is_floating(self.form):
            return np.asarray(a != b)
        c, d = (elements.cast(bits, dtype, self.form) for bits, dtype in zip((a, b), self.dtypes, strict=True))
        steps = np.abs(elements.ordinals(c, self.form) - elements.ordinals(d, self.form))
        both_nan = np.isnan(x) & np.isnan(y)
        self.max_ulp = max(self.max_ulp, int(steps[good].max(initial=0)))
        return (steps > 0) & ~both_nan

    def difference(self, n: int, ulp: int) -> Difference:
        own, other, both = (float(value) for value in self.products)
        is_float = elements.is_floating(self.form)
        verdict: TensorVerdict = "differs"
        if self.has_same_bits:
            verdict = "equal"
        elif self.n_differ == 0:
            verdict = "equal-after-cast" if self.dtypes[0] != self.dtypes[1] else "within-ulp"
        elif is_float and self.max_ulp <= ulp and not self.n_nonfinite:
            verdict = "within-ulp"
        norm = math.sqrt(own)
        relative = math.sqrt(self.squares) / norm if norm else (0.0 if self.squares == 0 else math.inf)
        cosine = both / math.sqrt(own) / math.sqrt(other) if own > 0 and other > 0 else None
        return Difference(
            verdict=verdict, n=n, n_differ=self.n_differ, max_abs=self.max_abs, max_rel=self.max_rel,
            relative_l2=relative, cosine=cosine, max_ulp=self.max_ulp if is_float else None,
            n_nonfinite=self.n_nonfinite, first_index=self.first[0] if self.first else None,
            first_values=self.first[1] if self.first else None,
        )  # fmt: skip


def _are_bits_equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.dtype.kind in "fc":
        a, b = (np.ascontiguousarray(v).view(np.uint8) for v in (np.atleast_1d(a), np.atleast_1d(b)))
    return bool(np.array_equal(a, b))


def _finite(values: Any) -> Any:
    return np.nan_to_num(values, copy=False, posinf=0.0, neginf=0.0) if values.dtype.kind in "fc" else values * 1.0


def _dot(a: Any, b: Any) -> float:
    with np.errstate(over="ignore"):
        return float(np.real(np.vdot(a, b)))
