"""The newest recording of a folder: what a command reads when no run is named."""

from __future__ import annotations

from pathlib import Path

from hypocenter.errors import CorruptRecordingError, NoRecordingError
from hypocenter.record.layout import RUNS_FOLDER, is_recording
from hypocenter.record.whole_run import read_run_file


def newest_run(folder: Path | None = None) -> Path:
    """The recording below `folder` whose program was started last; of those that do not say, the one written last.

    Args:
        folder: `runs` of the current folder where none is given.

    Raises:
        NoRecordingError: there is none.
    """
    folder = folder or Path(RUNS_FOLDER)
    found = [path for path in folder.iterdir() if is_recording(path)] if folder.is_dir() else []
    if not found:
        raise NoRecordingError(
            "no run is named, and there is none to take",
            where=str(folder),
            why="the folder holds no recording" if folder.is_dir() else "there is no such folder",
            fix="name one: hypocenter check RUN",
        )
    return max(found, key=_age)


def _age(path: Path) -> tuple[str, float]:
    try:
        started = read_run_file(path)[0].started
    except CorruptRecordingError:  # of a newer Hypocenter: who reads it says so
        started = ""
    return started, path.stat().st_mtime
