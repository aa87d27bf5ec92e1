"""Of a run as a whole: whether a directory is one, its run.json, and which ranks of the job are not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.errors import CorruptRecordingError, NoRecordingError
from hypocenter.nouns import Run
from hypocenter.record.layout import FORMAT, RUN_FILE, RUNS_FOLDER, is_recording
from hypocenter.record.salvage import newer_format

_RUN_FILE_AT_MOST_BYTES = 16 << 20
_NAMED_AT_MOST = 8  # missing ranks that a problem lists by number


def missing_ranks(run: Run, ranks: Mapping[int, Path]) -> list[str]:
    """Say in one line which ranks of the job left no recording; [] when all are there."""
    n_missing = run.world_size - sum(rank < run.world_size for rank in ranks)
    if n_missing <= 0:
        return []
    candidates = range(min(run.world_size, len(ranks) + _NAMED_AT_MOST))
    named = [str(rank) for rank in candidates if rank not in ranks][:_NAMED_AT_MOST]
    more = f" and {n_missing - len(named):,} more" if n_missing > len(named) else ""
    return [f"{n_missing:,} of {run.world_size:,} ranks left no recording: {', '.join(named)}{more}"]


def read_run_file(directory: Path) -> tuple[Run, list[str]]:
    """Return run.json, and what is wrong with it. Raises CorruptRecordingError when it is of a newer version."""
    path = directory / RUN_FILE
    unknown = Run(format=FORMAT, name=directory.resolve().name, world_size=0)
    try:
        with path.open("rb") as file:
            data = file.read(_RUN_FILE_AT_MOST_BYTES)
        loose: Any = msgspec.json.decode(data)
        if isinstance(loose, dict) and isinstance(loose.get("format"), int) and loose["format"] > FORMAT:
            raise newer_format(loose["format"], path)
        return msgspec.json.decode(data, type=Run), []
    except FileNotFoundError:
        return unknown, [f"{RUN_FILE} is missing: command, versions and world size are unknown"]
    except (OSError, ValueError, RecursionError) as error:
        return unknown, [f"{RUN_FILE} cannot be read: {error}"]


def require_recording(directory: Path) -> None:
    """Raise NoRecordingError, with what is there instead and what to name, unless this is a recording."""
    if is_recording(directory):
        return
    try:
        inside = sorted(p.name for p in directory.iterdir() if is_recording(p)) if directory.is_dir() else []
    except OSError:
        inside = []
    near = next((p for p in (directory.parent, directory.parent.parent) if is_recording(p)), None)
    meant = Path(RUNS_FOLDER) / directory
    if not directory.exists() and is_recording(meant):
        why, fix = "there is no such directory", f"name the one in {RUNS_FOLDER}: {meant}"
    elif not directory.exists():
        why, fix = "there is no such directory", "record one: hypocenter run --out DIR train.py"
    elif inside:
        why, fix = f"it is a folder of {len(inside)} recordings", f"name one of them: {directory / inside[-1]}"
    elif near is not None:
        why, fix = "it is a part of a recording", f"name the run directory: {near}"
    else:
        why, fix = f"it has neither {RUN_FILE} nor a folder of a rank", "record one: hypocenter run --out DIR train.py"
    raise NoRecordingError("no recording found", where=str(directory), why=why, fix=fix)


def newest_run(folder: Path | None = None) -> Path:
    """Return the recording below `folder` whose program was started last; if not known, the one written last.

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
