"""Which folders of a MindSpore dump hold the values of which rank, step and graph, and what lies beside them."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypocenter.importing.mindspore_names import parse_file

STATISTICS, MAPPING = "statistic.csv", "mapping.csv"
CONSTANTS = "constants"
_DEPTH = 10
_MOST_FOLDERS = 1_000_000
_SMALL_AT_MOST = 16 << 20  # bytes of a JSON file
_LISTS_AT_MOST = 256 << 20  # bytes of a list of names
_RANK = re.compile(r"rank_(\d{1,9})")
_NUMBER = re.compile(r"\d{1,15}")
_TIME = re.compile(r"\d{8,20}")
_GRAPH = re.compile(r"ms_output_trace_code_graph_(\d{1,9})\.ir")
_ORDER = re.compile(r"ms_execution_order_graph_(\d{1,9})\.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of values."""

    path: Path
    rank: int
    step: int
    graph: int  # -1: not told
    root: Path | None  # rank_N, beside whose values graphs and execution_order lie
    is_constants: bool = False


def folders_of(path: Path) -> list[Folder]:
    """Find the folders with values, by rank, step and graph."""
    found: list[Folder] = []
    for here, below, files in os.walk(path):
        below.sort()
        if len(Path(here).relative_to(path).parts) >= _DEPTH:
            below.clear()
        if any(name in (STATISTICS, MAPPING) or parse_file(name) is not None for name in files):
            found.append(_folder(Path(here).resolve()))
        if len(found) >= _MOST_FOLDERS:
            break
    return sorted(found, key=lambda f: (f.rank, f.step, f.graph, not f.is_constants, f.path))


def _folder(path: Path) -> Folder:
    parts = path.parts
    is_constants = parts[-1] == CONSTANTS
    inner = parts[:-1] if is_constants else parts
    at = next((i for i in reversed(range(len(inner))) if _RANK.fullmatch(inner[i])), -1)
    if at >= 0:  # rank_N/{net}/{graph}/{iteration}
        rank = int(inner[at].removeprefix("rank_"))
        numbers = _numbers(inner[at + 1 :])
        graph = numbers[-1:] if is_constants else numbers[-2:-1]
        step = 0 if is_constants or not numbers else numbers[-1]
        return Folder(
            path=path, rank=rank, step=step, graph=graph[0] if graph else -1, root=Path(*parts[: at + 1]),
            is_constants=is_constants,
        )  # fmt: skip
    if (
        len(inner) >= 5 and _TIME.fullmatch(inner[-5]) and _NUMBER.fullmatch(inner[-4])
    ):  # {step}/{time}/{device}/{model}/..
        told = _numbers(inner[-6:-5]) or _numbers(inner[-1:])
        return Folder(path=path, rank=int(inner[-4]), step=told[0] if told else 0, graph=-1, root=None)
    last = _numbers(inner[-1:])
    return Folder(path=path, rank=0, step=last[0] if last else 0, graph=-1, root=None, is_constants=is_constants)


def _numbers(parts: tuple[str, ...]) -> list[int]:
    """Return the numbers at the end of a path."""
    found: list[int] = []
    for part in reversed(parts):
        if not _NUMBER.fullmatch(part):
            break
        found.insert(0, int(part))
    return found


def names_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the files of a folder: their name there, and the name that tells what they hold."""
    long = dict(_mapping(folder / MAPPING))
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())
    for name in names:
        yield name, long.get(name, name)


def _mapping(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names that were too long for the file system: what stands instead, and what it stands for."""
    for row in rows_of(path):
        words = [word.strip() for word in row]
        for short, full in (words[:2], words[1::-1]) if len(words) >= 2 else ():
            full = full if full.endswith(".npy") else f"{full}.npy"
            short = short if short.endswith(".npy") else f"{short}.npy"
            if parse_file(full) is not None and parse_file(short) is None:
                yield short, full
                break


def rows_of(path: Path) -> Iterator[list[str]]:
    """Yield the rows of a CSV file; none when it is missing, and only those before any damage."""
    try:
        if not path.is_file() or path.stat().st_size > _LISTS_AT_MOST:
            return
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            yield from csv.reader(line.replace("\0", "") for line in file)
    except (OSError, csv.Error):
        return


def graphs_of(root: Path) -> dict[int, Path]:
    """Return the files with the graphs of a rank, by number."""
    return _numbered(root / "graphs", _GRAPH)


def orders_of(root: Path) -> dict[int, Path]:
    """Return the files that list the operators of each graph, by number."""
    return _numbered(root / "execution_order", _ORDER)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    found = ((pattern.fullmatch(file.name), file) for file in sorted(folder.iterdir()) if file.is_file())
    return {int(match[1]): file for match, file in found if match}


def setting(root: Path | None, file: str) -> dict[str, Any]:
    """Read `config.json` or `data_dump.json` of .dump_metadata; empty when it is missing or no JSON object."""
    if root is None:
        return {}
    path = root / ".dump_metadata" / file
    try:
        if not path.is_file() or path.stat().st_size > _SMALL_AT_MOST:
            return {}
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
