"""CSV and TSV files: a column of steps and columns of numbers, with a line of names."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from hypocenter.compare.curves.catalogue import Head, NotALogError, reader
from hypocenter.compare.curves.collector import Collector, canonical, is_step, lines, number, whole

_DELIMITERS = (",", "\t", ";")
_BAND = re.compile(r"__(MIN|MAX)$")
_MOST_COLUMNS = 2_000


def _accepts(head: Head) -> float:
    if not head.is_text:
        return 0.0
    names = _split(head.start.partition(b"\n")[0].decode("utf-8", "replace").lstrip("\ufeff").strip())
    if len(names) < 2:
        return 0.0
    ours = any(canonical(_own(name))[0] in ("loss", "grad_norm", "lr", "loss_scale") for name in names)
    has_step = any(is_step(_own(name)) is not None for name in names)
    return 0.6 if has_step and ours else 0.5 if has_step or ours else 0.0


@reader("csv", accepts=_accepts, counts_from=None)
def read(path: Path, found: Collector) -> None:
    """A line of column names, then numbers, separated by commas, tabs or semicolons.

    The step is in the column `step`, `global_step`, `iteration` or the like; without one, lines are counted from 0.
    Files that TensorBoard and W&B export are understood: the one column `Value` is taken as the loss unless the file's
    name says what it is, `run-name - train/loss` is train/loss, and its `__MIN` and `__MAX` are left out.
    """
    rows = _rows(path, found)
    names = [_own(name) for name in next(rows, [])]
    if len(names) > _MOST_COLUMNS or not names:
        raise NotALogError("this table has no line of column names", where=str(path))
    ranked = sorted((rank, i) for i, name in enumerate(names) if (rank := is_step(name)) is not None)
    at = ranked[0][1] if ranked else None
    if at is None:
        found.problem("there is no column of steps: lines are counted from 0")
    columns = {i: _named(name, path, found) for i, name in enumerate(names) if _counts(i, name, at)}
    for n, row in enumerate(rows):
        if found.is_full:
            return
        step = n if at is None else whole(row[at].strip()) if at < len(row) else None
        if step is None:
            found.problem("a line without a step was left out")
            continue
        for i, name in columns.items():
            cell = row[i].strip() if i < len(row) else ""
            value = number(cell) if cell else None
            if value is not None:
                found.add(step, name, value)
            elif cell:
                found.problem(f"{name!r} of a line is not a number")


def _counts(i: int, name: str, at: int | None) -> bool:
    return i != at and bool(name) and is_step(name) is None and name.lower() not in ("wall time", "timestamp", "time")


def _named(name: str, path: Path, found: Collector) -> str:
    if name.lower() != "value":
        return name
    words = re.split(r"tag-|[.]csv", path.name)
    if len(words) > 1 and canonical(words[-2])[0] != words[-2]:
        return words[-2]
    found.problem("the column 'Value' is taken as the loss")
    return "loss"


def _own(name: str) -> str:
    """Return a column's name without the name of the W&B run before it; "" for a column of a range (min, max)."""
    name = name.strip().strip('"').lstrip("\ufeff")
    return "" if _BAND.search(name) else name.rpartition(" - ")[2].strip()


def _split(line: str) -> list[str]:
    best = max(_DELIMITERS, key=line.count)
    return line.split(best) if best in line else [line]


def _rows(path: Path, found: Collector) -> Iterator[list[str]]:
    source = (line.replace("\0", "") for line in lines(path))
    first = next(source, "").lstrip("\ufeff")
    delimiter = max(_DELIMITERS, key=first.count)
    yield next(csv.reader([first], delimiter=delimiter), [])
    for line in source:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            yield next(csv.reader([line], delimiter=delimiter), [])
        except csv.Error:
            found.problem("a line is not CSV and was left out")
