"""In: values of two runs, measured. Out: a table with the worst elements below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypocenter.compare.sentences import place, power
from hypocenter.compare.values.measured import Measured
from hypocenter.report import wording
from hypocenter.report.columns import aligned, cut_rows

_HEAD = (
    "step", "mb", "site", "dtype", "max abs", "max rel", "rel L2", "cosine", "ulp p50", "p99", "max", "<1‰", "<5‰",
    "close",
)  # fmt: skip


def in_words(rows: Sequence[Measured], most: int) -> Iterator[str]:
    """Yield a heading, a line for at most `most` pairs, and the elements that are farthest apart over all."""
    if not rows:
        yield "no values: both runs must be recorded with --level tensors"
        return
    yield from aligned([_HEAD, *map(_cells, rows[:most])], right=frozenset({0, 1, *range(4, 13)}))
    yield from cut_rows(min(most, len(rows)), len(rows), "row", "see them with --rows 0 or --json")
    yield "ulp: of the coarser format; <1‰, <5‰: share of elements with a relative error below (msprobe's error ratios)"
    bad = [row for row in rows if row.distance.n_nonfinite_differs]
    for row in bad[:most]:
        n_nan, n_inf = row.distance.n_nan, row.distance.n_inf
        yield f"{_name(row)}: NaN {n_nan[0]:,} against {n_nan[1]:,}, inf {n_inf[0]:,} against {n_inf[1]:,}"
    worst = max(rows, key=lambda row: (row.distance.relative, row.distance.max_abs))
    if worst.distance.worst:
        yield f"farthest apart, at step {worst.step} in {_name(worst)}:"
    for element in worst.distance.worst:
        at = "[" + ", ".join(map(str, element.index)) + "]"
        part = f" of part {element.part}" if element.part else ""
        yield f"    {at}{part}: {element.baseline:.9g} against {element.candidate:.9g}"


def _name(row: Measured) -> str:
    spot = row.pair.baseline[0]
    more = f" +{len(row.pair.baseline) - 1}" if len(row.pair.baseline) > 1 else ""
    call = f" call {spot.call}" if spot.call else ""
    return f"{wording.clean(place(spot.site, spot.port))}{more}{call}"


def _cells(row: Measured) -> tuple[str, ...]:
    d = row.distance
    dtype = row.dtypes[0] if row.dtypes[0] == row.dtypes[1] else f"{row.dtypes[0]}, {row.dtypes[1]}"
    cosine = "" if d.cosine is None else f"{d.cosine:.7f}"
    return (
        str(row.step), str(row.microbatch), _name(row), dtype, f"{d.max_abs:.3g}", f"{d.max_rel:.3g}",
        power(d.relative), cosine, f"{d.ulp_p50:.3g}", f"{d.ulp_p99:.3g}", f"{d.ulp_max:.3g}",
        f"{d.one_thousandth:.4f}", f"{d.five_thousandths:.4f}", "yes" if d.allclose else f"no ({d.n_not_close:,})",
    )  # fmt: skip
