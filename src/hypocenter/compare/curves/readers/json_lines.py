"""JSON Lines: one object a line, with a step and numbers in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypocenter.compare.curves.catalogue import Head, reader
from hypocenter.compare.curves.collector import Collector, is_step, lines, number, whole

_DEEPEST = 3  # objects within objects


def _accepts(head: Head) -> float:
    first = head.start.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0]
    if not head.is_text or not first.startswith(b"{"):
        return 0.0
    row = _object(first.decode("utf-8", "replace"))
    return 0.5 if row else 0.0


@reader("jsonl", accepts=_accepts, counts_from=None)
def read(path: Path, found: Collector) -> None:
    """One JSON object a line: `{"step": 3, "loss": 2.1, "train": {"grad_norm": 0.5}}`.

    The step is under `step`, `global_step`, `iteration` or the like; without one, lines are counted from 0. Objects
    within are named `outer/inner`; NaN may be the bare word or a string.
    """
    n = 0
    for line in lines(path):
        if found.is_full:
            return
        if not line.strip():
            continue
        row = _object(line)
        if row is None:
            found.problem("a line is no JSON object and was left out")
            continue
        numbers = dict(_numbers(row))
        ranked = sorted((rank, name) for name in numbers if (rank := is_step(name)) is not None)
        step = whole(numbers[ranked[0][1]]) if ranked else n
        if not ranked:
            found.problem("there is no step in a line: lines are counted from 0")
        n += 1
        if step is None:
            found.problem("a line whose step is not whole was left out")
            continue
        for name, value in numbers.items():
            if is_step(name) is None:
                found.add(step, name, value)


def _object(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _numbers(row: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        name = f"{prefix}{key}"[:500]
        if isinstance(value, dict):
            if depth < _DEEPEST:
                yield from _numbers(value, f"{name}/", depth + 1)
        elif (one := number(value)) is not None and not isinstance(value, list):
            yield name, one
