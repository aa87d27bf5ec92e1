"""Where another tool's files of a step and rank lie: `step3/rank1/dump.json` and the ways in which that is varied."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypocenter.importing.recording import Recording

_STEP = re.compile(r"step(\d{1,15})")
_RANK = re.compile(r"(?:rank|device)(\d{1,9})")
_PROCESS = re.compile(r"proc(\d{1,12})|rank")
_DEPTH = 6
_MOST_RANK = 100_000  # a higher number behind `rank` is a process number, as ptdbg writes it
_MOST_FILES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of the dump, which is of one rank and step."""

    path: Path
    rank: int
    step: int


def parts_of(path: Path, is_wanted: Callable[[str], bool], into: Recording) -> list[Part]:
    """Find files by name below a path (or the path itself), each with the rank and step that its folders tell.

    Processes that no rank is told of are numbered in the order of their folders' names. The recording is told of how
    many ranks it is, and of what is left out.

    Returns:
        Ranks rising and of each rank the steps.
    """
    found = [path] if path.is_file() else _below(path, is_wanted)
    told = [(_number(_STEP, file), _rank_word(file), file) for file in found]
    processes = sorted({word for _, word, _ in told if isinstance(word, str)})
    kept: dict[tuple[int, int], Path] = {}
    twice: list[Path] = []
    for step, word, file in told:
        rank = word if isinstance(word, int) else processes.index(word)
        if kept.setdefault((rank, step or 0), file) is not file:
            twice.append(file)
    if len(processes) > 1:
        into.note(f"{len(processes)} processes without a rank are taken as ranks 0 to {len(processes) - 1}")
    for file in twice[:3]:
        into.problem(f"{file} is left out: another file is of the same rank and step; import it on its own")
    into.world_size = max((rank for rank, _ in kept), default=0) + 1
    return [Part(path=file, rank=rank, step=step) for (rank, step), file in sorted(kept.items())]


def _below(root: Path, is_wanted: Callable[[str], bool]) -> list[Path]:
    found: list[Path] = []
    for folder, folders, files in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        folders.sort()
        folders[:] = [name for name in folders if name != "dump_tensor_data"] if depth < _DEPTH else []
        found += [Path(folder) / name for name in sorted(files) if is_wanted(name)]
        if len(found) > _MOST_FILES:
            break
    return found


def _number(pattern: re.Pattern[str], file: Path) -> int | None:
    for part in reversed(file.absolute().parts[:-1]):
        match = pattern.fullmatch(part)
        if match:
            return int(match[1])
    return None


def _rank_word(file: Path) -> int | str:
    """Return the rank that the folders tell, or the word in its place; "" when there is none."""
    number = _number(_RANK, file)
    if number is not None and number < _MOST_RANK:
        return number
    for part in reversed(file.absolute().parts[:-1]):
        if _PROCESS.fullmatch(part) or _RANK.fullmatch(part):
            return part
    return ""
