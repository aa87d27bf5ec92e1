"""The reading end of the store: a run directory, whatever state its writers left it in."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.errors import HypocenterError, NoRecordingError, UnknownNameError
from hypocenter.nouns import Place, Reading, Run, StepRecord
from hypocenter.record.layout import (
    DIAGNOSIS_FILE,
    EVIDENCE_FILE,
    FORMAT,
    RUN_FILE,
    is_recording,
    rank_directories,
    sealed_path,
)
from hypocenter.record.place_file import read_place
from hypocenter.record.salvage import Salvaged, newer_format, salvage, sealed_rows
from hypocenter.record.schema import READINGS, STEPS, readings_from, steps_from

_STREAM_NAME = re.compile(r"(events|steps)-(.+)\.arrow")
_SEALED_NAME = re.compile(r"sealed-(events|steps)-(.+)\.parquet")
_SCHEMAS = {"events": READINGS, "steps": STEPS}
_RUN_FILE_AT_MOST_BYTES = 16 << 20
_NAMED_AT_MOST = 8  # missing ranks that a problem lists by number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one process wrote of one kind: a stream, its sealed form, or both."""

    kind: str
    writer: str  # <host>-<pid>
    stream: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """Rows of every rank, by kind and rank, and what is wrong with them."""

    tables: dict[tuple[str, int], pa.Table]
    problems: tuple[str, ...]


def open_run(path: Path | str) -> RecordedRun:
    """Open a run directory for reading. Rows are read at the first question about them.

    Raises:
        NoRecordingError: there is no recording, or one without any rank.
        CorruptRecordingError: it was written by a newer Hypocenter.
    """
    directory = Path(path)
    try:
        return _open(directory)
    except OSError as error:
        raise NoRecordingError("the recording cannot be opened", where=str(directory), why=str(error)) from error


def _open(directory: Path) -> RecordedRun:
    _require_recording(directory)
    run, problems = _read_run_file(directory)
    ranks = rank_directories(directory)
    if not ranks:
        raise NoRecordingError(
            "the recording is empty",
            where=str(directory),
            why=f"its program (status {run.status}) ended before its first step, or has just started",
            fix="look at the program's own output, then record again",
        )
    return RecordedRun(directory, run, ranks, problems + _missing_ranks(run, ranks))


class RecordedRun:
    """A recording: `run` (its run.json), `ranks` (their numbers), and rows as Arrow tables or as nouns."""

    def __init__(self, directory: Path, run: Run, folders: dict[int, Path], problems: list[str]) -> None:
        self.directory = directory
        self.run = run
        self.ranks: list[int] = list(folders)
        self._folders = folders
        self._early_problems = problems

    @property
    def problems(self) -> list[str]:
        """What is missing or damaged, one line each; the rest of the recording can be trusted."""
        return [*self._early_problems, *self._loaded.problems]

    @property
    def diagnosis_path(self) -> Path:
        """Where the latest diagnosis is, or would be written."""
        return self.directory / DIAGNOSIS_FILE

    @property
    def places(self) -> dict[int, Place]:
        """Where each rank runs and stands, by rank; one whose rank.json is missing or broken is not there."""
        return self._places

    @cached_property
    def _places(self) -> dict[int, Place]:
        found = ((rank, read_place(folder)) for rank, folder in self._folders.items())
        return {rank: place for rank, place in found if place is not None}

    def table(self, rank: int | None = None) -> pa.Table:
        """Readings of one rank, or of all in rising order, in the order they were written, with a column `rank`."""
        return self._table("events", rank)

    def steps(self, rank: int | None = None) -> pa.Table:
        """Step records, as `table` gives readings."""
        return self._table("steps", rank)

    def readings(
        self,
        *,
        steps: Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        rank: int | None = None,
    ) -> Iterator[Reading]:
        """Readings that pass every filter given; `site` is a shell glob. They do not know their rank: ask for one."""
        table = self.table(rank)
        if steps is not None:
            table = table.filter(pc.field("step").isin(pa.array(sorted(steps), pa.int64())))
        if phase is not None:
            table = table.filter(pc.field("phase") == phase)
        if site is not None:
            names: list[str] = table["site"].unique().to_pylist()
            matching = [name for name in names if fnmatch.fnmatchcase(name, site)]
            table = table.filter(pc.field("site").isin(pa.array(matching, pa.string())))
        return readings_from(table)

    def step_records(self) -> list[tuple[int, StepRecord]]:
        """Every (rank, step record), rank by rank, in the order they were written."""
        return [(rank, step) for rank in self.ranks for step in steps_from(self.steps(rank))]

    def sites(self) -> list[str]:
        """Names of all sites in execution order."""
        firsts = self.table().group_by("site").aggregate([("order", "min"), ("step", "min")])
        order = [("order_min", "ascending"), ("step_min", "ascending"), ("site", "ascending")]
        names: list[str] = firsts.sort_by(order)["site"].to_pylist()
        return names

    def evidence_files(self) -> list[tuple[int, Path]]:
        """Every (rank, path of an evidence.json), in order of rank and of name."""
        found = [(r, p) for r, folder in self._folders.items() for p in folder.glob(f"bundles/*/{EVIDENCE_FILE}")]
        return sorted(found)

    def seal(self) -> list[Path]:
        """Turn the streams into Parquet beside them and give the new paths.

        A stream that its writer has ended is removed. One without an end (killed, or still being written) stays, and
        rows are not counted twice: whichever holds more of them is read.

        Raises:
            HypocenterError: a file cannot be written.
        """
        from hypocenter.record.seal import write_sealed

        sealed: list[Path] = []
        for folder in self._folders.values():
            for part in _parts(folder):
                if not part.stream.exists():
                    continue
                try:
                    found = salvage(part.stream, _SCHEMAS[part.kind])
                    if found.table.num_rows <= sealed_rows(sealed_path(part.stream)) or not found.table.num_rows:
                        continue
                    sealed.append(write_sealed(found.table, part.stream, started_ns=found.started_ns))
                    if found.is_ended:
                        part.stream.unlink()
                except OSError as error:
                    raise HypocenterError(
                        "the recording cannot be sealed",
                        where=str(part.stream),
                        why=str(error),
                        fix="it can be read as it is",
                    ) from error
        return sealed

    def _table(self, kind: str, rank: int | None) -> pa.Table:
        if rank is not None and rank not in self._folders:
            raise UnknownNameError(
                f"rank {rank} is not in the recording",
                where=str(self.directory),
                fix=f"it holds {len(self.ranks)} ranks, {self.ranks[0]} to {self.ranks[-1]}",
            )
        ranks = self.ranks if rank is None else [rank]
        return pa.concat_tables([_with_rank(self._loaded.tables[kind, r], r) for r in ranks])

    @cached_property
    def _loaded(self) -> _Loaded:
        tables: dict[tuple[str, int], pa.Table] = {}
        problems: list[str] = []
        for rank, folder in self._folders.items():
            parts, problem = _parts_or_problem(folder)
            problems += [problem] if problem else []
            for kind, schema in _SCHEMAS.items():
                found = sorted((_read(part) for part in parts if part.kind == kind), key=lambda f: f.started_ns)
                problems += [f.problem for f in found if f.problem]
                tables[kind, rank] = pa.concat_tables([schema.empty_table(), *(f.table for f in found)])
            problems += _rank_problems(rank, parts, tables["events", rank].num_rows + tables["steps", rank].num_rows)
        return _Loaded(tables=tables, problems=tuple(problems))


def _with_rank(table: pa.Table, rank: int) -> pa.Table:
    column = pa.array(np.full(table.num_rows, rank, np.int32))
    return table.append_column(pa.field("rank", pa.int32(), nullable=False), column)


def _parts(folder: Path) -> list[_Part]:
    found: dict[tuple[str, str], _Part] = {}
    for path in sorted(folder.iterdir()):
        match = _STREAM_NAME.fullmatch(path.name) or _SEALED_NAME.fullmatch(path.name)
        if match:
            kind, writer = match[1], match[2]
            found[kind, writer] = _Part(kind=kind, writer=writer, stream=folder / f"{kind}-{writer}.arrow")
    return list(found.values())


def _parts_or_problem(folder: Path) -> tuple[list[_Part], str]:
    try:
        return _parts(folder), ""
    except OSError as error:
        return [], f"{folder.name} cannot be read: {error.strerror}"


def _read(part: _Part) -> Salvaged:
    """The rows of one part, from whichever of its two files holds more."""
    schema, sealed = _SCHEMAS[part.kind], sealed_path(part.stream)
    label = f"{part.stream.parent.name}/"
    try:
        found, name = salvage(part.stream, schema), part.stream.name
        if sealed.exists() and sealed_rows(sealed) > found.table.num_rows:
            other = salvage(sealed, schema)
            if other.table.num_rows > found.table.num_rows:
                found, name = other, sealed.name
    except FileNotFoundError:
        found, name = _read_sealed(sealed, schema), sealed.name
    if not found.problem:
        return found
    return Salvaged(table=found.table, started_ns=found.started_ns, problem=f"{label}{name}: {found.problem}")


def _read_sealed(path: Path, schema: pa.Schema) -> Salvaged:
    try:
        return salvage(path, schema)
    except FileNotFoundError:
        return Salvaged(table=schema.empty_table(), problem="vanished while it was read")


def _rank_problems(rank: int, parts: list[_Part], n_rows: int) -> list[str]:
    writers = sorted({part.writer for part in parts})
    problems: list[str] = []
    if not n_rows:
        problems.append(f"rank {rank} recorded nothing that can be read")
    if len(writers) > 1:
        problems.append(
            f"rank {rank} was written by {len(writers)} processes, its steps may overlap: {', '.join(writers)}"
        )
    return problems


def _missing_ranks(run: Run, ranks: dict[int, Path]) -> list[str]:
    n_missing = run.world_size - sum(rank < run.world_size for rank in ranks)
    if n_missing <= 0:
        return []
    candidates = range(min(run.world_size, len(ranks) + _NAMED_AT_MOST))
    named = [str(rank) for rank in candidates if rank not in ranks][:_NAMED_AT_MOST]
    more = f" and {n_missing - len(named):,} more" if n_missing > len(named) else ""
    return [f"{n_missing:,} of {run.world_size:,} ranks left no recording: {', '.join(named)}{more}"]


def _read_run_file(directory: Path) -> tuple[Run, list[str]]:
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


def _require_recording(directory: Path) -> None:
    if is_recording(directory):
        return
    try:
        inside = sorted(p.name for p in directory.iterdir() if is_recording(p)) if directory.is_dir() else []
    except OSError:
        inside = []
    near = next((p for p in (directory.parent, directory.parent.parent) if is_recording(p)), None)
    if not directory.exists():
        why, fix = "there is no such directory", "record one: hypocenter run --out DIR train.py"
    elif inside:
        why, fix = f"it is a folder of {len(inside)} recordings", f"name one of them: {directory / inside[-1]}"
    elif near is not None:
        why, fix = "it is a part of a recording", f"name the run directory: {near}"
    else:
        why, fix = f"it has neither {RUN_FILE} nor a folder of a rank", "record one: hypocenter run --out DIR train.py"
    raise NoRecordingError("no recording found", where=str(directory), why=why, fix=fix)
