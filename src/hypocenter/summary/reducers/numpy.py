"""NumPy array -> Summary, at once and exact: also the reference that other reducers are tested against."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hypocenter.nouns import Summary, replace
from hypocenter.summary.exponents import n_below, tally
from hypocenter.summary.merge import merge_all, saturated
from hypocenter.summary.sketch import Placement
from hypocenter.summary.sketch import sketch as sketch_of

CHUNK = 1 << 18  # elements: 2 MiB as float64, which bounds the extra memory
_SAMPLE = 512  # elements, evenly spread
_NO_SUBNORMALS = -(1 << 30)  # as exponent of the smallest normal number of integers and bool


def summarize(
    array: NDArray[Any],
    *,
    histogram: Literal["sample", "full"] = "full",
    sketch: bool = False,
    place: Placement | None = None,
    smallest_normal: int | None = None,
) -> Summary:
    """Summarise an array of any dtype and shape; what holds no numbers (strings, objects) gives `n` only.

    Args:
        histogram: "sample" looks at 512 evenly spread elements for the histogram's fields.
        sketch: also sketch it, as a whole or, with `place`, as a shard of a logical tensor.
        smallest_normal: binary exponent of the format that the numbers had, where that is not their dtype.
    """
    if array.dtype.kind not in "biufc":
        return Summary(n=array.size)
    row = np.ascontiguousarray(_real(array)).reshape(-1)
    if smallest_normal is None:
        smallest_normal = smallest_normal_exponent(row.dtype)
    whole = merge_all(_chunk(_widened(row[i : i + CHUNK]), smallest_normal) for i in range(0, row.size, CHUNK))
    if histogram == "sample" and row.size > _SAMPLE:
        sample = _chunk(_widened(row[:: row.size // _SAMPLE][:_SAMPLE]), smallest_normal)
        whole = replace(
            whole, n_hist=_SAMPLE, n_zero=sample.n_zero, n_subnormal=sample.n_subnormal, absmin=sample.absmin,
            hist_first=sample.hist_first, hist=sample.hist,
        )  # fmt: skip
    return replace(whole, sketch=tuple(sketch_of(array, place).tolist())) if sketch else whole


def _real(array: NDArray[Any]) -> NDArray[Any]:
    return np.stack([np.real(array), np.imag(array)]) if array.dtype.kind == "c" else array


def smallest_normal_exponent(dtype: np.dtype[Any]) -> int:
    """Return the binary exponent of the smallest normal number; integers and bool have no subnormals."""
    return int(np.finfo(dtype).minexp) if dtype.kind == "f" else _NO_SUBNORMALS


def _widened(row: NDArray[Any]) -> NDArray[Any]:
    """Return float32 or float64 values; integers beyond 2**53 and long double are rounded to float64."""
    return row.astype(np.float32 if row.dtype.name in ("float16", "float32") else np.float64)


def _chunk(x: NDArray[Any], smallest_normal: int) -> Summary:
    finite = x[np.isfinite(x)]
    counted = Summary(
        n=x.size, n_hist=x.size, n_nan=int(np.isnan(x).sum()), n_posinf=int((x == np.inf).sum()),
        n_neginf=int((x == -np.inf).sum()),
    )  # fmt: skip
    if not finite.size:
        return counted
    tallies = tally(finite, [finite.size])
    low, high = float(finite.min()), float(finite.max())
    wide = finite.astype(np.float64)
    with np.errstate(over="ignore"):
        total, squares = saturated(float(wide.sum())), saturated(float((wide * wide).sum()))
    return replace(
        counted, n_zero=tallies.n_zero[0], n_subnormal=n_below(smallest_normal, tallies.first[0], tallies.counts[0]),
        min=low + 0.0, max=high + 0.0, absmin=tallies.absmin[0], absmax=max(-low, high) + 0.0, sum=total, sumsq=squares,
        hist_first=tallies.first[0], hist=tallies.counts[0],
    )  # fmt: skip
