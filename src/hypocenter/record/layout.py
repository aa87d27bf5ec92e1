"""Where things are in a run directory (docs/format.md), and how a new one is made without harming an old one."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import msgspec

from hypocenter.errors import ConfigError, ExistsError

FORMAT = 3
# 1: first version
# 2: the journal; streams hold batches of several steps
# 3: segments; what is old is rolled up into windows

RUN_FILE = "run.json"
DIAGNOSIS_FILE = "diagnosis.json"
EVIDENCE_FILE = "evidence.json"
RUNS_FOLDER = "runs"
KEPT_FOLDER = "kept"  # empty files that name steps which stay whole: see islands.py
NODES_FOLDER = "nodes"  # a file for each node of a large job: see node_file.py
MARK_FOLDER = ".job"  # names the job whose tasks share the directory; holds a file for each task that has ended
REFUSED_FILE = ".refused"  # why the program was not allowed to train: what it was to impose does not fit it
CHANGES_FILE = "changes.jsonl"  # what processes noted of `Config.change`: [change, what] a line
INITIAL_WEIGHTS_FILE = "initial-weights.safetensors"  # of a rank: see weights_file.py
DUMP_FOLDER = "graph-dump"  # of a rank, while its program runs: what MindSpore dumps of a step, until it is read
STREAM_SUFFIX = ".arrow"
SEALED_SUFFIX = ".parquet"
SEALED_PREFIX = "sealed-"
JOURNAL_NAME = "journal-{}.msgpack"

_RANK_FOLDER = re.compile(r"rank-(\d{5,9})")


def rank_directory(run: Path, rank: int) -> Path:
    """Return the folder of one rank: `rank-00003`."""
    return run / f"rank-{rank:05d}"


def bundle_directory(run: Path, rank: int, bundle_id: str) -> Path:
    """Return the folder of one failure's evidence and of what its replay needs."""
    return rank_directory(run, rank) / "bundles" / bundle_id


def tensors_directory(run: Path, rank: int) -> Path:
    """Return the folder of the values saved at level `tensors`: `<step>-....safetensors`."""
    return rank_directory(run, rank) / "tensors"


def batches_directory(run: Path, rank: int) -> Path:
    """Return the folder of the batches of the first steps, kept whole: `step-000000/mb-0.safetensors`."""
    return rank_directory(run, rank) / "batches"


def sealed_path(stream: Path) -> Path:
    """Return the Parquet file that a stream becomes: `events-h-1.arrow` -> `sealed-events-h-1.parquet`."""
    return stream.with_name(f"{SEALED_PREFIX}{stream.stem}{SEALED_SUFFIX}")


def journal_path(stream: Path) -> Path:
    """Return the journal of a stream's process: `events-h-1.arrow` -> `journal-h-1.msgpack`."""
    return stream.with_name(JOURNAL_NAME.format(stream.stem.partition("-")[2]))


def rank_directories(run: Path) -> dict[int, Path]:
    """Return the rank folders that exist, by rank, in rising order."""
    found: dict[int, Path] = {}
    with os.scandir(run) as entries:  # which knows what is a folder without asking again
        for entry in entries:
            match = _RANK_FOLDER.fullmatch(entry.name)
            if match and entry.is_dir():
                found[int(match[1])] = run / entry.name
    return dict(sorted(found.items()))


def is_recording(path: Path) -> bool:
    """Return whether a folder holds a recording: rank folders, or a run.json that names a format."""
    if not path.is_dir():
        return False
    if rank_directories(path):
        return True
    try:
        return isinstance(msgspec.json.decode((path / RUN_FILE).read_bytes()).get("format"), int)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def new_run_directory(out: str | None, force: bool, name: str = "") -> Path:
    """Make an empty run directory: `out`, or a fresh `runs/<date-time>-<name>` when `out` is None.

    With `force` an existing recording in `out` is removed: run.json, diagnosis.json, rank folders; nothing else.

    Raises:
        ExistsError: `out` holds a recording and `force` is off, or holds something that is no recording.
        ConfigError: the directory cannot be made.
    """
    try:
        if out is None:
            return _fresh(Path(RUNS_FOLDER), name)
        return _claim(_local(out), force)
    except OSError as error:
        raise ConfigError(
            "the run directory cannot be made",
            where=out or RUNS_FOLDER,
            why=str(error),
            fix="choose another with --out",
        ) from error


def _fresh(parent: Path, name: str) -> Path:
    stem = time.strftime("%Y%m%d-%H%M%S") + (f"-{_safe(name)}" if _safe(name) else "")
    for attempt in range(1, 10_000):
        path = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not parent.is_dir():
                raise
            continue  # another process of the same second
        return path
    raise FileExistsError(str(parent / stem))


def _safe(name: str) -> str:
    """Return the harmless part of a name for a file: letters, digits, dot, dash and underscore, at most 40."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40]


def _local(out: str) -> Path:
    if re.match(r"[a-z0-9+]+://", out):
        raise ConfigError(
            "a run is recorded to a local directory",
            where=out,
            why="remote addresses cannot be appended to at each step",
            fix="record to a local path and copy it afterwards",
        )
    return Path(out)


def _claim(path: Path, force: bool) -> Path:
    if not path.exists() and not path.is_symlink():
        path.mkdir(parents=True, exist_ok=True)
        return path
    if not path.is_dir():
        raise ExistsError("the run directory exists and is a file", where=str(path), fix="choose another with --out")
    if not {inside.name for inside in path.iterdir()} - {MARK_FOLDER}:
        return path
    if not is_recording(path):
        raise ExistsError(
            "the run directory is not empty and holds no recording",
            where=str(path),
            why="it was not written by Hypocenter, so nothing in it is removed, even with --force",
            fix="choose another with --out, or empty it yourself",
        )
    if not force:
        raise ExistsError(
            "a recording exists there already",
            where=str(path),
            why="recordings are never overwritten silently",
            fix="choose another with --out, or add --force to replace it",
        )
    remove_recording(path)
    return path


def remove_recording(path: Path) -> None:
    """Remove what a recording consists of, and nothing else. Raises OSError."""
    for name in (RUN_FILE, DIAGNOSIS_FILE):
        (path / name).unlink(missing_ok=True)
    for name in (MARK_FOLDER, KEPT_FOLDER, NODES_FOLDER):
        if not (path / name).is_symlink():
            shutil.rmtree(path / name, ignore_errors=True)
    for folder in rank_directories(path).values():
        if folder.is_symlink():
            folder.unlink()  # what it points to is not ours
        else:
            shutil.rmtree(folder)
