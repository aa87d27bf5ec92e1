"""The sites of a recording: what each is, and the extremes it ever reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hypocenter.nouns import Summary
from hypocenter.report import wording
from hypocenter.report.columns import aligned

_KEY = ("phase", "site", "port", "op", "dtype")
_TAKEN = (
    ("order", "min"), ("step", "count_distinct"), ("n", "sum"), ("n_nan", "sum"), ("n_posinf", "sum"),
    ("n_neginf", "sum"), ("n_hist", "sum"), ("n_zero", "sum"), ("n_subnormal", "sum"), ("absmin", "min"),
    ("absmax", "max"), ("sumsq", "max"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLine:
    """One site and port over all selected steps, micro-batches and ranks."""

    phase: str
    site: str
    port: str
    op: str
    dtype: str
    n_steps: int
    absmin: float | None
    absmax: float
    magnitude: str  # absmax in words, or the largest norm where only norms were recorded
    headroom_bits: float | None  # to the largest value of the dtype; None if unknown or not finite
    chips: tuple[str, ...]


def site_lines(table: pa.Table) -> list[SiteLine]:
    """Every (phase, site, port, op, dtype) of the table, in execution order."""
    wanted = [*_KEY, *(name for name, _ in _TAKEN)]
    grouped = table.select(wanted).group_by(list(_KEY), use_threads=False).aggregate(list(_TAKEN))
    rows = sorted(grouped.to_pylist(), key=lambda row: row["order_min"])
    return [_line(row) for row in rows]


def _line(row: dict[str, Any]) -> SiteLine:
    counts: dict[str, Any] = {name: row[f"{name}_sum"] for name, how in _TAKEN if how == "sum"}
    absmax = float(row["absmax_max"])
    summary = Summary(absmax=absmax, sumsq=float(row["sumsq_max"]), **counts)
    bits = None if summary.n_nonfinite else wording.headroom_bits(absmax, str(row["dtype"]))
    return SiteLine(
        **{name: str(row[name]) for name in _KEY},
        n_steps=int(row["step_count_distinct"]),
        absmin=row["absmin_min"],
        absmax=absmax,
        magnitude=wording.magnitude(summary),
        headroom_bits=bits,
        chips=wording.chips(summary),
    )


def in_words(lines: Sequence[SiteLine]) -> Iterator[str]:
    """A heading and one line per site."""
    rows = [("phase", "site", "port", "dtype", "steps", "|max|", "headroom", "values that stand out")]
    for line in lines:
        name = wording.clean(line.site) or "(model)"
        bits = "none" if _is_bad(line) else "" if line.headroom_bits is None else f"{line.headroom_bits:.1f} bits"
        what = (line.phase, f"{name} {wording.clean(line.op)}".strip(), wording.clean(line.port), line.dtype)
        rows.append((*what, f"{line.n_steps:,}", line.magnitude, bits, ", ".join(line.chips)))
    yield from aligned(rows, right=frozenset({4, 5, 6}))


def most_telling(lines: Sequence[SiteLine]) -> str:
    """The site to look at next: the first with values that are not finite, else the one with the least headroom."""
    if not lines:
        return "*"
    bad = next((line for line in lines if _is_bad(line)), None)
    return (bad or min(lines, key=lambda line: math.inf if line.headroom_bits is None else line.headroom_bits)).site


def _is_bad(line: SiteLine) -> bool:
    return any(map(wording.is_bad_chip, line.chips))
