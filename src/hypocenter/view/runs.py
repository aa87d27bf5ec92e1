"""Which runs may be seen: those that were named, and those directly in folders that were named. No others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from hypocenter.errors import NoRecordingError
from hypocenter.record.layout import RUNS_FOLDER, is_recording

MOST_RUNS = 200  # of a folder, the newest


class Runs:
    """The directories of runs by their names in addresses. An address never holds a path.

    Args:
        paths: run directories, and folders of them; `runs` when there is none.

    Raises:
        NoRecordingError: one of them is neither.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._named = [path.resolve() for path in paths if is_recording(path)]
        self.folders = [path.resolve() for path in paths or [Path(RUNS_FOLDER)] if not is_recording(path)]
        self.n_hidden = 0
        for folder in self.folders:
            if not folder.is_dir():
                raise NoRecordingError(
                    "no recording found", where=str(folder), why="there is no such directory",
                    fix="record one: hypocenter run --out DIR train.py, or name a folder of runs",
                )  # fmt: skip

    @property
    def where(self) -> str:
        """The paths that were given, in words."""
        return ", ".join(str(path) for path in [*self._named, *self.folders])

    def by_name(self) -> dict[str, Path]:
        """Return all runs that can be seen now, newest first. A link in a folder that leads elsewhere is left out."""
        found = [path for folder in self.folders for path in _inside(folder)]
        found.sort(key=_changed, reverse=True)
        self.n_hidden = max(0, len(found) - MOST_RUNS)
        return {name_of(path): path for path in dict.fromkeys([*self._named, *found[:MOST_RUNS]])}


def name_of(path: Path) -> str:
    """Return a word for an address: the directory's name, and what tells it from others of that name."""
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.name).strip(".-")[:60] or "run"
    return f"{word}~{hashlib.blake2b(str(path).encode('utf-8', 'surrogateescape'), digest_size=4).hexdigest()}"


def _inside(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.is_symlink() and is_recording(path)]
    except OSError:
        return []


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
