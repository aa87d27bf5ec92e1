"""The sites of a recording: what each is, and the extremes it ever reached."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.nouns import PHASES, Summary
from hypocenter.report import wording
from hypocenter.report.columns import aligned

_KEY = ("phase", "site", "port", "op", "dtype", "replay")
_TAKEN = (
    ("order", "min"), ("step", "count_distinct"), ("n", "sum"), ("n_nan", "sum"), ("n_posinf", "sum"),
    ("n_neginf", "sum"), ("n_hist", "sum"), ("n_zero", "sum"), ("n_subnormal", "sum"), ("absmin", "min"),
    ("absmax", "max"), ("sumsq", "max"), ("min", "min"), ("max", "max"), ("digest", "count"), ("step", "count"),
)  # fmt: skip
_UNCOUNTED = "is_uncounted"
_REPLAYED = "in replays of steps that failed:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLine:
    """One site and port over all selected steps, micro-batches and ranks."""

    phase: str
    site: str
    port: str
    op: str
    dtype: str
    replay: bool  # as a replay of failed steps saw it, not the run itself
    n_steps: int
    absmin: float | None
    absmax: float | None  # None: not recorded
    magnitude: str  # absmax in words, or the largest norm where only norms were recorded
    headroom_bits: float | None  # to the largest value of the dtype; None if unknown or not finite
    chips: tuple[str, ...]


def site_lines(table: pa.Table) -> list[SiteLine]:
    """Return every (phase, site, port, op, dtype) of the table by phase, in execution order; replays last.

    The orders of a replay are its own: what it did stands beside what the run did, never between.
    """
    wanted = [*_KEY, *dict.fromkeys(name for name, _ in _TAKEN)]
    table = table.select(wanted).append_column(_UNCOUNTED, _is_uncounted(table))
    grouped = table.group_by(list(_KEY), use_threads=False).aggregate([*_TAKEN, (_UNCOUNTED, "max")])
    rows = sorted(grouped.to_pylist(), key=lambda row: (row["replay"], PHASES.index(row["phase"]), row["order_min"]))
    return [_line(row) for row in rows]


def _is_uncounted(table: pa.Table) -> pa.Array:
    """Tell of which rows only a norm that is not finite is known: see wording.counts_nonfinite."""
    n_bad = pc.add(pc.add(table["n_nan"], table["n_posinf"]), table["n_neginf"])
    is_norm = pc.and_(pc.equal(table["n_hist"], 0), pc.equal(table["absmax"], 0.0))
    return pc.and_(
        pc.and_(is_norm, pc.is_null(table["min"])), pc.and_(pc.greater(n_bad, 0), pc.less(n_bad, table["n"]))
    )


def _line(row: dict[str, Any]) -> SiteLine:
    counts: dict[str, Any] = {name: row[f"{name}_sum"] for name, how in _TAKEN if how == "sum"}
    absmax = float(row["absmax_max"])
    summary = Summary(
        absmax=absmax, sumsq=float(row["sumsq_max"]), min=row["min_min"], max=row["max_max"], **counts,
    )  # fmt: skip
    is_measured = wording.has_extremes(summary) or summary.n_hist > 0
    bits = None if summary.n_nonfinite else wording.headroom_bits(absmax, str(row["dtype"]))
    has_digests_alone = not is_measured and not summary.sumsq and row["digest_count"] == row["step_count"]
    if str(row["dtype"])[:1].isdigit():  # rows of relations have a number in its place
        row = {**row, "dtype": ""}
    return SiteLine(
        **{name: row[name] for name in _KEY},
        n_steps=int(row["step_count_distinct"]),
        absmin=row["absmin_min"],
        absmax=absmax if is_measured else None,
        magnitude="digest" if has_digests_alone else wording.magnitude(summary),
        headroom_bits=bits,
        chips=wording.chips(summary, is_counted=not row[f"{_UNCOUNTED}_max"]),
    )


def in_words(lines: Sequence[SiteLine], room: int | None = None) -> Iterator[str]:
    """Yield a heading and a line per site, replays last under a line that says so. `room`: see columns.aligned."""
    rows = [("phase", "site", "port", "dtype", "steps", "|max|", "headroom", "values that stand out")]
    for line in lines:
        name = wording.clean(line.site) or "(model)"
        bits = "none" if is_bad(line) else "" if line.headroom_bits is None else f"{line.headroom_bits:.1f} bits"
        what = (
            line.phase,
            f"{name} {wording.clean(line.op)}".strip(),
            wording.port_name(line.phase, line.port),
            line.dtype,
        )
        rows.append((*what, f"{line.n_steps:,}", line.magnitude, bits, ", ".join(line.chips)))
    heading, *texts = aligned(rows, right=frozenset({4, 5, 6}), room=room, name=1)
    yield heading
    for i, (line, text) in enumerate(zip(lines, texts, strict=True)):
        if line.replay and not (i and lines[i - 1].replay):
            yield _REPLAYED
        yield text


def most_telling(lines: Sequence[SiteLine]) -> str | None:
    """Return the site to look at next: the first that is not finite, else the one with the least headroom.

    None: there is none that has a name.
    """
    named = [line for line in lines if line.site and line.phase != "data"] or [line for line in lines if line.site]
    if not named:
        return None
    bad = next((line for line in named if is_bad(line)), None)
    return (bad or min(named, key=lambda line: math.inf if line.headroom_bits is None else line.headroom_bits)).site


def is_bad(line: SiteLine) -> bool:
    """Return whether the line has values that are not finite."""
    return any(map(wording.is_bad_chip, line.chips))
