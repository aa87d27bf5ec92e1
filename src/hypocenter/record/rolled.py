"""What is said of a recording whose past is rolled up into windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypocenter.record.gather import Want
from hypocenter.record.parts import WINDOWS, parts_of
from hypocenter.record.rank_files import read_rank
from hypocenter.record.windows import OF_RECORDS
from hypocenter.record.windows import WINDOWS as COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledSpan:
    """The steps of one rank that windows tell of, and how wide these windows are."""

    first: int
    last: int
    narrowest: int
    widest: int
    n_records: int  # step records that windows tell of
    n_there: int  # and those of them that are there one by one


def rolled_span(folder: Path) -> RolledSpan | None:
    """Return the span of the rank of this folder; None where nothing is rolled up."""
    try:
        if not parts_of(folder, (WINDOWS,)):
            return None
    except OSError:
        return None
    table = read_rank(folder, WINDOWS, Want(columns=("step", "last_step", "width", "phase", "site", "n_rows"))).table
    if not table.num_rows:
        return None
    assert COLUMNS.names[0] == "step"
    first, last = min(table["step"].to_pylist()), max(table["last_step"].to_pylist())
    widths = set(table["width"].unique().to_pylist())
    n_records = sum(
        n for phase, site, n in zip(*(table[c].to_pylist() for c in ("phase", "site", "n_rows")), strict=True)
        if phase == OF_RECORDS and site == "step_ms"
    )  # fmt: skip
    steps = read_rank(folder, "steps", Want(columns=("step",))).table["step"]
    n_there = sum(first <= step <= last for step in steps.to_pylist())
    return RolledSpan(
        first=first, last=last, narrowest=min(widths), widest=max(widths), n_records=n_records, n_there=n_there
    )


def rolled_sentences(spans: Mapping[int, RolledSpan], n_ranks: int) -> list[str]:
    """Say in one line what is rolled up in the whole run; [] when nothing is.

    Args:
        spans: by rank, of those that have any.
        n_ranks: of the recording.
    """
    if not spans:
        return []
    found = list(spans.values())
    first, last = min(s.first for s in found), max(s.last for s in found)
    narrow, wide = min(s.narrowest for s in found), max(s.widest for s in found)
    of = "" if n_ranks == 1 else f" of {len(spans):,} of {n_ranks:,} ranks"
    widths = f"{narrow:,}" if narrow == wide else f"{narrow:,} to {wide:,}"
    gone = sum(s.n_records - s.n_there for s in found) > 0
    what = "readings and losses" if gone else "readings"
    said = (
        f"{what} of steps {first:,} to {last:,}{of} are rolled up into windows of {widths} steps (--keep), whole are "
        "those around what was out of the ordinary: rules looked at no window"
    )
    return [said]
