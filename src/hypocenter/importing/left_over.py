"""What the dump of a graph tells of a program that was killed before it could be read."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from hypocenter.config import Config
from hypocenter.diagnose.evidence import Evidence
from hypocenter.errors import HypocenterError
from hypocenter.importing.mindspore_live import LiveDump, LiveRows, noted_calls
from hypocenter.nouns import Run, replace
from hypocenter.record.layout import DUMP_FOLDER, EVIDENCE_FILE, bundle_directory, rank_directories
from hypocenter.record.liveness import boot_id, pid_namespace, start_ticks
from hypocenter.record.reader import open_run
from hypocenter.record.whole_run import read_run_file
from hypocenter.record.writer import Writer

OWNER = "owner.txt"  # in the folder of the dump: boot, space of process numbers, process number, its start


def note_owner(folder: Path) -> None:
    """Write down which process dumps into the folder."""
    pid = os.getpid()
    with suppress(OSError):
        (folder / OWNER).write_text(f"{boot_id()} {pid_namespace()} {pid} {start_ticks(pid)}\n", encoding="ascii")


def read_left_over(directory: Path) -> list[str]:
    """Read dumps whose programs have ended into the recording, and delete them.

    Returns:
        What is to be said of it, a line each; [] where there is none. What cannot be read is said, never raised.
    """
    said: list[str] = []
    try:
        folders = {rank: path / DUMP_FOLDER for rank, path in rank_directories(directory).items()}
    except OSError:
        return said
    for rank, folder in folders.items():
        if not folder.is_dir() or _is_alive(folder):
            continue
        try:
            steps = _read(directory, rank, folder)
        except (HypocenterError, OSError, ValueError) as error:
            said.append(f"the dump of rank {rank} cannot be read: {str(error).splitlines()[0]}")
            continue
        if steps:
            named = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
            verb = "was" if len(steps) == 1 else "were"
            said.append(f"{named} of rank {rank} {verb} read from the dump of a graph that was under way")
    return said


def _read(directory: Path, rank: int, folder: Path) -> list[int]:
    known = _recorded(directory, rank)
    config = _config(read_run_file(directory)[0])
    rows = LiveRows(config, directory, rank)
    dump = LiveDump(folder, rank, rows, sketch=config.sketch)
    problems: list[str] = []
    writer = Writer(directory, rank=rank, warn=problems.append)
    found: list[int] = []
    for step, calls in sorted(noted_calls(folder).items()):
        if step not in known and dump.read(step, calls):
            record = rows.record
            if dump.evidence is not None and record is not None:
                _write(directory, rank, dump.evidence)
                record = replace(record, finding=dump.evidence.id)
            writer.write(rows.rows, record)
            found.append(step)
    writer.close()
    if problems:
        raise OSError(problems[0])
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _recorded(directory: Path, rank: int) -> set[int]:
    """Return the steps that the program itself has written."""
    if not any(rank_directories(directory)[rank].glob("*steps-*")):
        return set()
    return {step.step for of, step in open_run(directory).step_records() if of == rank}


def _write(directory: Path, rank: int, evidence: Evidence) -> None:
    folder = bundle_directory(directory, rank, evidence.id)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EVIDENCE_FILE).write_bytes(msgspec.json.encode(evidence))


def _config(run: Run) -> Config:
    """Return the configuration, as far as the recording says what was asked for."""
    told = {name: run.config.get(name) for name in ("level", "sites", "exclude", "param_schedule", "sketch")}
    try:
        return msgspec.convert({name: value for name, value in told.items() if value is not None}, Config)
    except msgspec.ValidationError:
        return Config(level="modules")


def _is_alive(folder: Path) -> bool:
    """Return whether the program that dumps there still runs, as far as it can be seen from here."""
    try:
        boot, space, pid, ticks = (folder / OWNER).read_text(encoding="ascii", errors="replace").split()
        is_here = (boot, int(space)) == (boot_id(), pid_namespace())
        return is_here and int(ticks) > 0 and start_ticks(int(pid)) == int(ticks)
    except (OSError, ValueError):
        return False
