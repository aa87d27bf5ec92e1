"""What `hypocenter runs` answers: the recordings of a folder, newest first, with what was found in each so far."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from hypocenter.errors import HypocenterError, NoRecordingError, first_line
from hypocenter.nouns import Status
from hypocenter.record.layout import DIAGNOSIS_FILE, is_recording
from hypocenter.record.whole_run import read_run_file

MOST_FOLDERS = 10_000  # looked into, so that a home directory is no trap
DEPTH = 3  # folders below each other, without those inside of a recording
_DIAGNOSIS_AT_MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recording."""

    path: str
    started: Annotated[str, Meta(description="ISO 8601, UTC; empty if it is not known.")] = ""
    program: Annotated[Literal["running", "finished", "failed", "killed", "unknown"], Meta(description="How it ended.")]
    ranks: int = 0
    level: str = ""
    command: tuple[str, ...] = ()
    diagnosis: Annotated[
        Literal["healthy", "findings", "cannot-tell", "not-checked"],
        Meta(description="What the end of `hypocenter run`, or the last `hypocenter check`, said."),
    ] = "not-checked"
    first: Annotated[str, Meta(description="Code and title of its first finding; else why it cannot be read.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The recordings of a folder, those that started last first."""

    schema: Literal["hypocenter.runs/1"] = "hypocenter.runs/1"
    status: Literal["found"] = "found"
    folder: str
    runs: tuple[Recorded, ...] = ()
    notes: tuple[str, ...] = ()


class Diagnosed(msgspec.Struct):
    """The fields of a diagnosis.json that are read here; any version has them."""

    status: Status
    findings: list[dict[str, Any]] = []


def answer(folder: Path) -> Runs:
    """Return all recordings of a folder and of the folders in it.

    Raises:
        NoRecordingError: there is no such folder, or none in it.
    """
    found, notes = recordings_below(folder)
    runs = sorted((_recorded(path) for path in found), key=lambda run: (run.started, run.path), reverse=True)
    return Runs(folder=str(folder), runs=tuple(runs), notes=notes)


def recordings_below(folder: Path) -> tuple[list[Path], tuple[str, ...]]:
    """Return the recordings in a folder and below, unordered, and notes on what was not looked at.

    Raises:
        NoRecordingError: there is no such folder, or none in it.
    """
    found, n_folders, waiting = list[Path](), 0, deque([(folder, 0)])
    while waiting and n_folders < MOST_FOLDERS:
        path, depth = waiting.popleft()  # those near first
        n_folders += 1
        if is_recording(path):
            found.append(path)
        elif depth < DEPTH:
            waiting += [(inside, depth + 1) for inside in _folders(path)]
    if not found:
        why = "it holds none" if folder.is_dir() else "there is no such folder"
        why = f"none in the first {n_folders:,} folders; there are more" if waiting else why
        raise NoRecordingError(
            "no recording found", where=str(folder), why=why, fix="record one: hypocenter run train.py"
        )
    return found, ("there are too many folders to look into all: name a smaller one",) if waiting else ()


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _recorded(path: Path) -> Recorded:
    try:
        run, problems = read_run_file(path)
    except HypocenterError as error:  # of a newer Hypocenter
        return Recorded(path=str(path), program="unknown", first=first_line(error))
    diagnosed = diagnosed_in(path)
    first = diagnosed.findings[0] if diagnosed is not None and diagnosed.findings else {}
    words = [str(first[key]) for key in ("code", "title") if first.get(key)]
    return Recorded(
        path=str(path),
        started=run.started,
        program="unknown" if problems else run.status,
        ranks=run.world_size,
        level=str(run.config.get("level") or ""),
        command=run.command,
        diagnosis=diagnosed.status if diagnosed is not None else "not-checked",
        first=" ".join(words) or "; ".join(problems),
    )


def diagnosed_in(recording: Path) -> Diagnosed | None:
    """Return what the last look at a recording found; None when there was none or its file cannot be read."""
    try:
        with (recording / DIAGNOSIS_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_DIAGNOSIS_AT_MOST_BYTES), type=Diagnosed)
    except (OSError, ValueError, RecursionError):
        return None
