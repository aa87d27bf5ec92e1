"""Depth tensor: how far two tensors are apart, element by element, in blocks that fit memory.

Relative and absolute errors are of float64 differences. The baseline is the reference everywhere but in ULPs, where it
is the larger of both magnitudes (so that a value against zero does not count for ever): `ulps` of an element is
|b - a| / ulp(max(|a|, |b|)) in the coarser format of the two, ulp(x) being the distance between numbers of x's binade.

`one_thousandth` and `five_thousandths` are what msprobe (Ascend) calls One Thousandth and Five Thousandths Err Ratio:
the share of elements whose relative error is *below* 1/1000 and 5/1000, 1 being best. The error is
|n - b| / |b|, where b is the baseline; where b is 0, float32's eps (float64's for float64 values) is added to both
first (msprobe 26.2, core/compare/utils.py, `get_relative_err`, `calc_relative_err_ratio`). Non-finite elements: msprobe
compares nothing unless their places agree, and then takes them as 0; here they are left out, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hypocenter.compare.comparison import Distance
from hypocenter.compare.rows import Ints
from hypocenter.compare.values.bits import Array, decoded
from hypocenter.compare.values.tensor_file import Stored
from hypocenter.formats import FORMATS, Format

BLOCK = 1 << 20  # elements in memory at a time, a few of their float64 copies
N_WORST = 5
_THOUSANDTH, _FIVE_THOUSANDTHS = 1e-3, 5e-3
# (rtol, atol) of torch.testing.assert_close; of float8, which it does not know, one step of the format
_TOLERANCE = {
    "float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5),
    "float8_e4m3fn": (2.0**-3, 2.0**-9), "float8_e4m3fnuz": (2.0**-3, 2.0**-10),
    "float8_e5m2": (2.0**-2, 2.0**-16), "float8_e5m2fnuz": (2.0**-2, 2.0**-17),
}  # fmt: skip
_LIKE = {"float8_e4m3fnuz": "float8_e4m3fn", "float8_e5m2fnuz": "float8_e5m2"}
_PER_OCTAVE = 16  # buckets of ULPs in a factor of two: quantiles are up to 4.5 % too small
_FEWEST_ULPS = 2.0**-6  # finer differences count as this: the finer format's own
_OCTAVES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One of the elements that are farthest apart."""

    index: tuple[int, ...]  # in the baseline's part
    baseline: float
    candidate: float
    part: int = 0  # of a fused tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDistance:
    """How far two tensors are apart."""

    n: int
    max_abs: float  # over elements that are finite on both sides, as all that follows
    max_rel: float  # |b - a| / |a|, where a is not 0
    relative: float  # ‖b - a‖ / ‖a‖; infinite when finiteness differs, or the baseline is 0 and the candidate is not
    cosine: float | None
    scale: float | None  # ⟨b, a⟩ / ⟨a, a⟩
    ulp_p50: float
    ulp_p99: float
    ulp_max: float
    ulp_histogram: dict[str, int]  # "0", "<1", "1", "2", "4", ... : up to which power of two at least
    ulp_dtype: str  # the coarser format
    allclose: bool
    n_not_close: int
    one_thousandth: float
    five_thousandths: float
    n_nan: tuple[int, int]  # baseline, candidate
    n_inf: tuple[int, int]
    n_nonfinite_differs: int  # elements that are NaN, +inf or -inf on one side and something else on the other
    n_differ: int  # elements that are not equal, of the finite ones
    worst: tuple[Element, ...]

    @property
    def is_equal(self) -> bool:
        """Whether every element is the same; NaN counts as equal to NaN."""
        return self.n_differ == 0 and self.n_nonfinite_differs == 0

    @property
    def distance(self) -> Distance:
        """The same as the Distance of a row of a comparison."""
        details = {
            "n": float(self.n), "max_abs": self.max_abs, "max_rel": self.max_rel, "ulp_p50": self.ulp_p50,
            "ulp_p99": self.ulp_p99, "ulp_max": self.ulp_max, "not_close": float(self.n_not_close),
            "one_thousandth": self.one_thousandth, "five_thousandths": self.five_thousandths,
            "nonfinite_differs": float(self.n_nonfinite_differs), "differ": float(self.n_differ),
        }  # fmt: skip
        return Distance(
            depth="tensor", relative=self.relative, low=self.relative, high=self.relative, cosine=self.cosine,
            scale=self.scale, details=details,
        )  # fmt: skip


def tensor_distance(views: Sequence[tuple[Stored, Stored]], *, block: int = BLOCK) -> TensorDistance:
    """Compare two tensors.

    Args:
        views: parts of (baseline, candidate) that lie alike.
        block: elements to look at in one go.
    """
    sums = _Sums(coarser(views[0][0].dtype, views[0][1].dtype) if views else "float32")
    for part, (a, b) in enumerate(views):
        exact = "float64" in (a.dtype, b.dtype)
        for start, x, y in _blocks(a, b, block):
            sums.take(x, y, part=part, start=start, shape=a.shape, zero=2.0**-52 if exact else 2.0**-23)
    return sums.result()


def coarser(first: str, second: str) -> str:
    """Return the format that has fewer fraction bits; the first one when neither is a float."""
    known = [name for name in (first, second) if _LIKE.get(name, name) in FORMATS]
    return min(known, key=lambda name: _form(name).fraction_bits, default=first)


def _form(name: str) -> Format:
    return FORMATS.get(_LIKE.get(name, name), FORMATS["float32"])


def _blocks(a: Stored, b: Stored, block: int) -> Iterator[tuple[int, Array, Array]]:
    """Yield (number of the first element, its values on both sides), some rows of the first dimension at a time."""
    if a.raw.ndim == 0:
        yield 0, decoded(a.raw.reshape(1), a.dtype), decoded(b.raw.reshape(1), b.dtype)
        return
    per_row = math.prod(a.shape[1:])
    step = max(1, block // max(per_row, 1))
    for row in range(0, a.shape[0] if per_row else 0, step):
        x, y = (decoded(np.ascontiguousarray(one.raw[row : row + step]), one.dtype).reshape(-1) for one in (a, b))
        yield row * per_row, x, y


@dataclass(slots=True)
class _Sums:
    """Sums over blocks of the elements of two tensors, from which their distance follows."""

    dtype: str
    n: int = 0
    n_finite: int = 0
    n_differ: int = 0
    n_not_close: int = 0
    n_within: list[int] = field(default_factory=lambda: [0, 0])
    n_nan: list[int] = field(default_factory=lambda: [0, 0])
    n_inf: list[int] = field(default_factory=lambda: [0, 0])
    n_nonfinite_differs: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    ulp_max: float = 0.0
    squares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # of difference, baseline, candidate
    product: float = 0.0
    ulps: Ints = field(default_factory=lambda: np.zeros(1 + _PER_OCTAVE * _OCTAVES, np.int64))
    worst: list[tuple[float, Element]] = field(default_factory=list[tuple[float, Element]])

    @np.errstate(all="ignore")
    def take(self, a: Array, b: Array, *, part: int, start: int, shape: tuple[int, ...], zero: float) -> None:
        """Add the next block of elements."""
        self.n += len(a)
        for side, values in enumerate((a, b)):
            self.n_nan[side] += int(np.isnan(values).sum())
            self.n_inf[side] += int(np.isinf(values).sum())
        finite = np.isfinite(a) & np.isfinite(b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        self.n_nonfinite_differs += int((~finite & ~same).sum())
        places = np.flatnonzero(finite)
        a, b = a[places], b[places]
        gap = np.abs(b - a)
        self.n_finite += len(a)
        self.n_differ += int((gap > 0).sum())
        self._add(a, b, gap, zero)
        self._remember(a, b, gap, places + start, part, shape)

    def _add(self, a: Array, b: Array, gap: Array, zero: float) -> None:
        size = np.abs(a)
        self.max_abs = max(self.max_abs, float(gap.max(initial=0.0)))
        of = size > 0
        self.max_rel = max(self.max_rel, float((gap[of] / size[of]).max(initial=0.0)))
        error = gap / np.where(of, size, zero)
        self.n_within[0] += int((error < _THOUSANDTH).sum())
        self.n_within[1] += int((error < _FIVE_THOUSANDTHS).sum())
        rtol, atol = _TOLERANCE.get(self.dtype, (0.0, 0.0))
        self.n_not_close += int((gap > atol + rtol * size).sum())
        for at, values in enumerate((gap, a, b)):
            self.squares[at] += float(values @ values)
        self.product += float(a @ b)
        ulps = gap / ulp(np.maximum(size, np.abs(b)), self.dtype)
        self.ulp_max = max(self.ulp_max, float(ulps.max(initial=0.0)))
        octave = np.log2(np.maximum(ulps, _FEWEST_ULPS) / _FEWEST_ULPS)
        bucket = np.where(ulps > 0, 1 + (octave * _PER_OCTAVE).astype(np.int64), 0)
        self.ulps += np.bincount(np.minimum(bucket, len(self.ulps) - 1), minlength=len(self.ulps))

    def _remember(self, a: Array, b: Array, gap: Array, places: Ints, part: int, shape: tuple[int, ...]) -> None:
        some = np.argpartition(gap, -N_WORST)[-N_WORST:] if len(gap) > N_WORST else np.arange(len(gap))
        for at in some[gap[some] > 0].tolist():
            index = tuple(int(i) for i in np.unravel_index(int(places[at]), shape)) if shape else ()
            element = Element(index=index, baseline=float(a[at]), candidate=float(b[at]), part=part)
            self.worst.append((float(gap[at]), element))
        self.worst = sorted(self.worst, key=lambda one: (-one[0], one[1].part, one[1].index))[:N_WORST]

    @np.errstate(all="ignore")
    def result(self) -> TensorDistance:
        """Return the distance of all elements that were added."""
        apart, own, other = (math.sqrt(value) for value in self.squares)
        relative = 0.0 if apart == 0.0 else apart / own if own else math.inf
        n = max(self.n_finite, 1)
        return TensorDistance(
            n=self.n, max_abs=self.max_abs, max_rel=self.max_rel,
            relative=math.inf if self.n_nonfinite_differs else relative,
            cosine=max(-1.0, min(1.0, self.product / own / other)) if own and other else None,
            scale=self.product / self.squares[1] if own else None, ulp_p50=self._quantile(0.5),
            ulp_p99=self._quantile(0.99), ulp_max=self.ulp_max, ulp_histogram=self._histogram(), ulp_dtype=self.dtype,
            allclose=not self.n_not_close and not self.n_nonfinite_differs, n_not_close=self.n_not_close,
            one_thousandth=self.n_within[0] / n if self.n_finite else 1.0,
            five_thousandths=self.n_within[1] / n if self.n_finite else 1.0,
            n_nan=(self.n_nan[0], self.n_nan[1]), n_inf=(self.n_inf[0], self.n_inf[1]),
            n_nonfinite_differs=self.n_nonfinite_differs, n_differ=self.n_differ,
            worst=tuple(element for _, element in self.worst),
        )  # fmt: skip

    def _quantile(self, share: float) -> float:
        """Return the lower end of the histogram bucket that holds this quantile of the ulps."""
        if not self.n_finite:
            return 0.0
        at = int(np.searchsorted(np.cumsum(self.ulps), share * self.n_finite))
        return 0.0 if at == 0 else _FEWEST_ULPS * 2.0 ** ((at - 1) / _PER_OCTAVE)

    def _histogram(self) -> dict[str, int]:
        octaves = self.ulps[1:].reshape(_OCTAVES, _PER_OCTAVE).sum(1)
        below = round(-math.log2(_FEWEST_ULPS))
        found = {"0": int(self.ulps[0]), "<1": int(octaves[:below].sum())}
        found |= {f"{2**at}": int(count) for at, count in enumerate(octaves[below:].tolist())}
        return {name: count for name, count in found.items() if count}


def ulp(size: Array, dtype: str) -> Array:
    """Return the distance between neighbouring numbers of a format at these magnitudes; of integers 1."""
    if _LIKE.get(dtype, dtype) not in FORMATS:
        return np.ones_like(size)
    form = _form(dtype)
    exponent = np.frexp(size)[1] - 1
    return np.ldexp(1.0, np.maximum(exponent, form.smallest_exponent) - form.fraction_bits)
