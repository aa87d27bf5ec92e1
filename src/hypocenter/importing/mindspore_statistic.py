"""Rows of MindSpore's statistic.csv as what is known of tensors; columns are told by their names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hypocenter.importing.mindspore_names import IO, FileName, dtype_of
from hypocenter.importing.mindspore_tree import rows_of
from hypocenter.importing.statistics import shape_of, summary_of
from hypocenter.nouns import Summary

_BAD = {"NaN Count": "n_nan", "Positive Inf Count": "n_posinf", "Negative Inf Count": "n_neginf"}
_WHOLE = re.compile(r"\d{1,18}")
_DIGESTS = {"MD5": "md5", "SHA1": "sha1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a row tells of one tensor."""

    name: FileName
    shape: tuple[int, ...]
    summary: Summary
    lacks: str
    digest: int | None = None  # the first 64 bits
    digest_kind: str = ""


def statistics(path: Path, say: Callable[[str], None]) -> Iterator[Row]:
    """Yield the rows of a file.

    Args:
        path: statistic.csv.
        say: takes one line when rows are left out.
    """
    rows = rows_of(path)
    head = next(rows, [])
    columns = {name.strip(): i for i, name in enumerate(head)}
    if not {"Op Type", "Op Name", "IO", "Slot"} <= columns.keys():
        say(f"{path} is left out: it has no columns Op Type, Op Name, IO, Slot")
        return
    n_bad = 0
    for row in rows:
        found = _row({name: row[i].strip() for name, i in columns.items() if i < len(row)})
        if found is None:
            n_bad += bool(row)
            continue
        yield found
    if n_bad:
        say(f"{path}: {n_bad:,} rows could not be read")


def _row(cells: Mapping[str, str]) -> Row | None:
    shape, slot = _shape(cells.get("Shape", "")), _whole(cells.get("Slot", ""))
    io = cells.get("IO", "").lower()
    if shape is None or slot is None or io not in ("input", "output") or not cells.get("Op Name"):
        return None
    dtype = dtype_of(cells.get("Data Type", ""))
    n = math.prod(shape)
    where: IO = "input" if io == "input" else "output"
    summary, lacks = summary_of(
        n, high=_real(cells.get("Max Value")), low=_real(cells.get("Min Value")), mean=_real(cells.get("Avg Value")),
        norm=_real(cells.get("L2Norm Value")), dtype=dtype, is_rounded=True,
    )  # fmt: skip
    summary, lacks = _counted(summary, lacks, cells)
    kind = next((word for word in _DIGESTS if cells.get(word)), "")
    name = FileName(
        op_type=cells.get("Op Type", "")[:200], name=cells["Op Name"].replace("/", "_")[:4096],
        time_us=_whole(cells.get("Timestamp", "")) or 0, io=where, slot=slot, dtype=dtype,
    )  # fmt: skip
    return Row(
        name=name, shape=shape, summary=summary, lacks=lacks, digest=_digest(cells.get(kind, "")),
        digest_kind=_DIGESTS.get(kind, ""),
    )  # fmt: skip


def _counted(summary: Summary, lacks: str, cells: Mapping[str, str]) -> tuple[Summary, str]:
    """Return summary and lacks with the counts that the row has: these are exact."""
    counts = {key: _whole(cells[name]) for name, key in _BAD.items() if name in cells}
    known = {key: value for key, value in counts.items() if value is not None and value <= summary.n}
    if not known or sum(known.values()) > summary.n:
        return summary, lacks
    words = lacks.split()
    summary = replace(summary, **known)
    if len(known) == len(_BAD) and "counts" in words:
        words.remove("counts")
    if summary.n_nonfinite:  # what a mean over them is, is not said
        summary = replace(summary, sum=0.0, sumsq=0.0)
        words = [word for word in words if word != "rough"] + ["sum", "sumsq"]
    return summary, " ".join(dict.fromkeys(words))


def _shape(text: str) -> tuple[int, ...] | None:
    words = text.strip().strip("()[]\"'").replace(",", " ").split()
    return shape_of(list(map(int, words))) if all(map(_WHOLE.fullmatch, words)) else None


def _whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _real(text: str | None) -> float | None:
    try:
        return float(text) if text and len(text) < 64 else None
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get(text.lower()) if text else None


def _digest(text: str) -> int | None:
    if not re.fullmatch(r"[0-9a-fA-F]{16,64}", text):
        return None
    value = int(text[:16], 16)
    return value - (1 << 64) if value >> 63 else value
