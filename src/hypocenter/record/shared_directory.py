"""One run directory for tasks that start side by side and cannot speak to each other: the first task makes it.

The first task leaves a mark in the directory that names the job, before anything else; the others wait for it. A job
that is started again finds its own mark and goes on in the same recording, as another attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hypocenter.errors import ExistsError
from hypocenter.launcher import Task
from hypocenter.record.layout import (
    MARK_FOLDER,
    RUN_FILE,
    RUNS_FOLDER,
    is_recording,
    new_run_directory,
    rank_directories,
)
from hypocenter.record.whereabouts import WHEREABOUTS_FILE
from hypocenter.record.whole_file import write_whole

_MARK = "id"
WAIT_S = 60.0  # for the first task: nodes of a job may start that far apart
_POLL_S = 0.05


def shared_run_directory(
    out: str | None, force: bool, task: Task, *, attempt: int = 0, wait_s: float = WAIT_S, warn: Callable[[str], object]
) -> Path:
    """Return the run directory of this task's job: `out`, or `runs/job-<job>`.

    Args:
        attempt: above 0, a recording with this job's mark is gone on with.
        wait_s: how long tasks other than the first wait for it. Then they record without it and say so.

    Raises:
        ExistsError: `out` holds something else; in every task alike.
        ConfigError: the directory cannot be made.
    """
    path = Path(out) if out is not None else Path(RUNS_FOLDER) / f"job-{task.job}"
    if attempt > 0 and _mark(path) == task.job:
        return path
    if task.number == 0:
        return _claimed(path, force, task)
    if not _follows(path, force, task, wait_s):
        warn(f"task 0 has not made {path} within {wait_s:.0f} s: recording without it")
        path.mkdir(parents=True, exist_ok=True)
    return path


def note_end(directory: Path, task: Task) -> None:
    """Leave word that this task's program has ended and its rows are written. Never raises."""
    try:
        (directory / MARK_FOLDER / f"ended-{task.number}").touch()
    except OSError:
        return


def await_others(directory: Path, task: Task, wait_s: float) -> bool:
    """Wait until every task has ended; False when some have not within the time."""
    until = time.monotonic() + wait_s
    while True:
        try:
            n_ended = sum(1 for path in (directory / MARK_FOLDER).iterdir() if path.name.startswith("ended-"))
        except OSError:
            return False
        if n_ended >= task.n_tasks:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)


def _claimed(path: Path, force: bool, task: Task) -> Path:
    if not _has_only_whereabouts(path):
        new_run_directory(str(path), force)
    folder = path / MARK_FOLDER
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    write_whole(folder / _MARK, task.job.encode("ascii"))
    return path


def _has_only_whereabouts(path: Path) -> bool:
    """Return whether tasks of a job that begins have said where they are, but recorded nothing yet."""
    if not path.is_dir() or (path / RUN_FILE).exists():
        return False
    folders = rank_directories(path)
    if not folders or {p.name for p in path.iterdir()} != {folder.name for folder in folders.values()}:
        return False
    return all(p.name.lstrip(".").startswith(WHEREABOUTS_FILE) for folder in folders.values() for p in folder.iterdir())


def _follows(path: Path, force: bool, task: Task, wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    while True:
        is_taken = is_recording(path)  # before the mark: the first task leaves its mark before it records
        if _mark(path) == task.job and not (path / MARK_FOLDER / f"ended-{task.number}").exists():
            return True  # a task that has ended there already was of an earlier run of the same job
        if is_taken and not force:
            raise ExistsError(
                "a recording exists there already",
                where=str(path),
                why="recordings are never overwritten silently",
                fix="choose another with --out, or add --force to replace it",
            )
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)


def _mark(path: Path) -> str:
    try:
        return (path / MARK_FOLDER / _MARK).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
