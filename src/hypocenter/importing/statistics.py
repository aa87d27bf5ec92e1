"""From Max, Min, Mean and Norm of another tool to a Summary, and the words for what these four do not tell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hypocenter.nouns import Summary, replace
from hypocenter.summary.reducers.numpy import summarize

_MOST_DIMS = 64
_MOST_ELEMENTS = 1 << 60
OF_STATISTICS = (
    "counts of NaN and infinities are lower bounds, and histograms and zeros are not known (no values)",
    "mean and norm were computed in the tensor's own dtype: an infinite norm is no finding by itself",
)
"""What is to be said of a dump of maximum, minimum, mean and norm."""
_UNKNOWN = "counts histogram extremes sum sumsq"


def summary_of(
    n: int, *, high: Any, low: Any, mean: Any, norm: Any, dtype: str, is_rounded: bool = False
) -> tuple[Summary, str]:
    """Return what four statistics tell of `n` elements, and what is lacking (nouns.LACKS).

    A statistic that is no number (null, text) is not known. NaN in a maximum, minimum or mean proves one NaN at least,
    or infinities of both signs for a mean; an infinite extreme proves one of its sign. An infinite mean or norm of
    finite extremes proves nothing: the sum overflowed the format in which it was formed.

    Args:
        high, low, mean, norm: as found in the file.
        is_rounded: to six decimals.
    """
    if n == 0:
        return Summary(), ""
    top, bottom = number(high), number(low)
    if top is None and bottom is None:
        return Summary(n=n), _UNKNOWN
    if top is not None and not is_rounded and (top == bottom or (n == 1 and math.isnan(top))):
        exact = _of_equal(n, top, dtype) if n == 1 or math.isfinite(top) else None
        if exact is not None:
            return exact, ""
    lacks = ["histogram"]
    has_nan = any(value is not None and math.isnan(value) for value in (top, bottom))
    n_posinf, n_neginf = int(math.inf in (top, bottom)), int(-math.inf in (top, bottom))
    is_bad = bool(has_nan or n_posinf or n_neginf)
    lacks += ["counts"] if is_bad else []
    finite_top = top if top is not None and math.isfinite(top) else None
    finite_bottom = bottom if bottom is not None and math.isfinite(bottom) else None
    lacks += ["extremes"] if finite_top is None or finite_bottom is None else []
    total = None if is_bad else _finite(number(mean))
    size = None if is_bad else _finite(number(norm))
    lacks += [word for word, value in (("sum", total), ("sumsq", size)) if value is None]
    lacks += ["rounded"] if is_rounded else []
    if (total is not None or size is not None) and dtype != "float64":
        lacks.append("rough")
    squares = size * size if size is not None else 0.0
    summary = Summary(
        n=n, n_nan=int(has_nan), n_posinf=n_posinf, n_neginf=n_neginf, min=finite_bottom, max=finite_top,
        absmax=max((abs(v) for v in (finite_top, finite_bottom) if v is not None), default=0.0),
        sum=(total * n if math.isfinite(total * n) else 0.0) if total is not None else 0.0,
        sumsq=squares if math.isfinite(squares) else 0.0,
    )  # fmt: skip
    if size is not None and not math.isfinite(squares):
        lacks.append("sumsq")
    return summary, " ".join(dict.fromkeys(lacks))


def _of_equal(n: int, value: float, dtype: str) -> Summary | None:
    """Return the summary of elements that are all the same, exact; None if NumPy lacks their format."""
    if dtype == "bfloat16":
        dtype = "float32"  # the same exponents
    if dtype not in ("float32", "float64", "float16", "bool") and not dtype.startswith(("int", "uint")):
        return None
    with np.errstate(over="ignore"):
        kept = np.array([value], np.float64 if dtype.startswith(("int", "uint", "bool")) else dtype)
    if math.isfinite(value) != bool(np.isfinite(kept[0])):
        return None
    one = summarize(kept)
    total, squares = one.sum * n, one.sumsq * n
    if n == 1 or not (math.isfinite(total) and math.isfinite(squares)):
        return one if n == 1 else None
    return replace(
        one, n=n, n_hist=n, n_zero=one.n_zero * n, n_subnormal=one.n_subnormal * n, sum=total, sumsq=squares,
        hist=tuple(count * n for count in one.hist),
    )  # fmt: skip


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return a shape as JSON has it; None for what is none, or has more elements than any tensor."""
    if not isinstance(value, list) or len(value) > _MOST_DIMS:
        return None
    if any(type(n) is not int or not 0 <= n <= _MOST_ELEMENTS for n in value):
        return None
    return tuple(value) if math.prod(value) <= _MOST_ELEMENTS else None


def value_of(summary: Summary) -> float:
    """Return the value of a tensor of one element."""
    if not summary.n_nonfinite:
        return summary.sum
    return math.nan if summary.n_nan else math.inf if summary.n_posinf else -math.inf


def number(value: Any) -> float | None:
    """Return a statistic as a float; None when it is none."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
