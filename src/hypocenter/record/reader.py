"""The reading end of the store: a run directory, whatever state its writers left it in.

A job of hundreds of ranks is larger than memory: rows are read rank by rank, and only what a question needs is kept.
"""

from __future__ import annotations

import fnmatch
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.errors import HypocenterError, NoRecordingError, UnknownNameError
from hypocenter.nouns import Place, Reading, Run, StepRecord
from hypocenter.record import attempts
from hypocenter.record.address import address_of, is_address
from hypocenter.record.elsewhere import brought
from hypocenter.record.facts_file import Facts, read_facts
from hypocenter.record.gather import EVERYTHING, Mask, Want, nothing
from hypocenter.record.layout import EVIDENCE_FILE, rank_directories, sealed_path
from hypocenter.record.pandas_left_out import leave_pandas_out
from hypocenter.record.parts import WINDOWS, parts_of
from hypocenter.record.place_file import read_place
from hypocenter.record.rank_files import SCHEMAS, Knowledge, RankRows, StepStream, files_of_one, read_rank, spans_of
from hypocenter.record.rolled import rolled_sentences, rolled_span
from hypocenter.record.salvage import salvage, sealed_rows
from hypocenter.record.schema import encoded, readings_from, steps_from
from hypocenter.record.whereabouts import Whereabouts, read_earlier, read_whereabouts
from hypocenter.record.whole_run import missing_ranks, read_run_file, require_recording
from hypocenter.record.workers import Workers, workers_of

A = TypeVar("A")
P = TypeVar("P")
Look = Callable[["RecordedRun", Sequence[int]], A]
"""What is asked of some ranks of a recording."""
Each = Callable[["RecordedRun", int, pa.Table], pa.Table]
"""What is made of the rows of one rank."""
_KEPT_BYTES = 256 << 20  # of tables kept for the next question: a job of many ranks is read again instead
_READERS = 2  # threads that read ahead: Arrow decodes without the interpreter's lock
_AHEAD = 3  # ranks read before they are asked for
_PARTS_OF_WORKER = 8  # so that one that is slow, or dies, holds up little, and none waits long for the last
_RANKS_OF_PART = 4  # whose rows travel at once


def open_run(path: Path | str, on: str = "") -> RecordedRun:
    """Open a run directory, or one elsewhere by its address (s3://...), for reading. Rows are read when asked for.

    Args:
        path: of it.
        on: what looks at its ranks, where there are several (`record.workers.workers_of`); this process if not given.

    Raises:
        NoRecordingError: there is no recording, or one without any rank.
        CorruptRecordingError: it was written by a newer Hypocenter.
        ConfigError: nothing is known by the name `on`.
    """
    leave_pandas_out()
    workers = workers_of(on)
    directory = brought(address_of(path)) if is_address(path) else Path(path)
    try:
        return _open(directory, workers)
    except OSError as error:
        raise NoRecordingError("the recording cannot be opened", where=str(directory), why=str(error)) from error


def _open(directory: Path, workers: Workers | None = None) -> RecordedRun:
    require_recording(directory)
    run, problems = read_run_file(directory)
    ranks = rank_directories(directory)
    if not ranks:
        raise NoRecordingError(
            "the recording is empty",
            where=str(directory),
            why=f"its program (status {run.status}) ended before its first step, or has just started",
            fix="look at the program's own output, then record again",
        )
    found = RecordedRun(directory, run, ranks, problems + missing_ranks(run, ranks))
    found.workers = workers if len(ranks) > 1 else None
    return found


class RecordedRun:
    """A recording: `run` (its run.json), `ranks` (their numbers), and rows as Arrow tables or as nouns."""

    def __init__(self, directory: Path, run: Run, folders: dict[int, Path], problems: list[str]) -> None:
        self.workers: Workers | None = None
        self._token = uuid4().hex
        self.directory = directory
        self.run = run
        self.ranks: list[int] = list(folders)
        self._folders = folders
        self._early_problems = problems
        self._facts: dict[tuple[str, int], Knowledge] = {}
        self._kept: dict[tuple[str, int], pa.Table] = {}
        self._room_bytes = _KEPT_BYTES
        self._lock = Lock()

    @property
    def problems(self) -> list[str]:
        """What is missing or damaged, one line each; the rest of the recording can be trusted."""
        return [*self._early_problems, *self._late_problems]

    @property
    def early_problems(self) -> list[str]:
        """The problems that show without reading any rows."""
        return list(self._early_problems)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of how it was read."""
        return self.workers.notes if self.workers is not None else ()

    @property
    def places(self) -> dict[int, Place]:
        """Where each rank runs and stands, by rank; one whose rank.json is missing or broken is not there."""
        return self._places

    @cached_property
    def _places(self) -> dict[int, Place]:
        found = ((rank, read_place(folder)) for rank, folder in self._folders.items())
        return {rank: place for rank, place in found if place is not None}

    def facts(self, rank: int | None = None) -> Facts | None:
        """What the program of a rank is made of; of the lowest rank when none is given. None when it left none."""
        folder = self._folders.get(self.ranks[0] if rank is None else rank)
        return read_facts(folder) if folder is not None else None

    @property
    def whereabouts(self) -> dict[int, Whereabouts]:
        """Where each rank was last, by rank; one that has left no such file, or a broken one, is not there."""
        return self._whereabouts

    @cached_property
    def _whereabouts(self) -> dict[int, Whereabouts]:
        found = ((rank, read_whereabouts(folder)) for rank, folder in self._folders.items())
        return {rank: seen for rank, seen in found if seen is not None}

    @property
    def earlier_whereabouts(self) -> dict[int, dict[int, Whereabouts]]:
        """The same of the earlier attempts of an elastic job, by attempt and rank."""
        found: dict[int, dict[int, Whereabouts]] = {}
        for rank, folder in self._folders.items():
            for seen in read_earlier(folder):
                found.setdefault(seen.attempt, {})[rank] = seen
        return found

    def table(self, rank: int | None = None) -> pa.Table:
        """Readings of one rank, or of all in rising order, in the order they were written, with a column `rank`."""
        return self._table("events", rank)

    def steps(self, rank: int | None = None) -> pa.Table:
        """Step records, as `table` gives readings."""
        return self._table("steps", rank)

    def windows(self, rank: int | None = None) -> pa.Table:
        """Windows of what is rolled up (`record.windows.WINDOWS`), as `table` gives readings: a window is no step."""
        tables = [with_rank(read_rank(self._folders[r], WINDOWS, EVERYTHING).table, r) for r in self._asked(rank)]
        return pa.concat_tables(tables)

    @cached_property
    def rolled_up(self) -> list[str]:
        """What is to be said of steps that are no longer there one by one; nothing of a recording that is whole."""
        spans = {rank: span for rank, folder in self._folders.items() if (span := rolled_span(folder)) is not None}
        return rolled_sentences(spans, len(self.ranks))

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

    def scan(
        self,
        where: Mask | None = None,
        *,
        columns: Sequence[str] | None = None,
        needs: Sequence[str] = (),
        ranks: Sequence[int] | None = None,
        each: Each | None = None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Readings rank by rank, in rising order, as (rank, table): what a job of many ranks is looked at with.

        Only a few ranks are in memory at a time. Where `workers` read, `where` and `each` travel to them.

        Args:
            where: which rows to keep: takes a batch of READINGS' columns, gives booleans.
            columns: to keep, of READINGS and `rank`; all when not given.
            needs: columns that `where` looks at, beside `columns`.
            ranks: to read; all when not given.
            each: takes this recording, a rank and its rows, and gives what is made of them.
        """
        own = None if columns is None else tuple(name for name in columns if name != "rank")
        want = Want(where=where, columns=own, needs=tuple(needs))
        asked = self.ranks if ranks is None else list(ranks)
        look = partial(_tables_of, want=want, is_ranked=columns is None or "rank" in columns, each=each)
        if self.workers is None or (where is None and each is None) or self._has_all("events", asked):
            yield from look(self, asked)  # rows that are all wanted travel no faster than they are read
            return
        for tables in self.over_parts(partial(_listed, look), asked, most=_RANKS_OF_PART):
            yield from tables

    def over_parts(self, look: Look[A], ranks: Sequence[int] | None = None, *, most: int | None = None) -> Iterator[A]:
        """What comes of looking at parts of the ranks, in rising order (map); the caller merges.

        Args:
            look: takes a recording and some of its ranks. Where there are `workers`, it travels, and so do its answers.
            ranks: to look at; all when not given.
            most: ranks of a part.
        """
        ranks = self.ranks if ranks is None else ranks
        if self.workers is None or len(ranks) < 2:
            yield look(self, ranks)
            return
        n = min(len(ranks), max(self.workers.n * _PARTS_OF_WORKER, -(-len(ranks) // most) if most else 0))
        yield from self.over([[int(rank) for rank in part] for part in np.array_split(np.array(ranks), n)], look)

    def over(self, parts: Sequence[P], look: Callable[[RecordedRun, P], A]) -> Iterator[A]:
        """What comes of looking at each part, whatever it is a part of, in turn; `look` as of `over_parts`."""
        if self.workers is None:
            yield from (look(self, part) for part in parts)
            return
        ask = partial(_look_in_worker, str(self.directory.resolve()), self._token, look)
        for answer in self.workers.run(ask, parts):
            with self._lock:
                self._facts.update(answer.known)
            yield answer.value

    def walk(self, rank: int, take: Mask) -> pa.Table | None:
        """Readings of one rank batch by batch, in the order they were written, words as dictionaries.

        Args:
            rank: whose.
            take: takes each batch once, gives which of its rows are kept.

        Returns:
            The rows kept; None when the file turned out not to be trusted: then what `take` has seen does not count.
        """
        folder, key = self._folders[rank], ("events", rank)
        with self._lock:
            kept = self._kept.get(key)
        if kept is None and files_of_one(folder, is_alone=True):
            rows = read_rank(folder, "events", Want(where=take, is_encoded=True))
            self._remember(key, rows)
            return rows.table if rows.known.n_rows or not rows.known.problems else None
        table = self._read("events", rank, EVERYTHING) if kept is None else kept
        schema = encoded(table.schema)
        words = [pa.types.is_dictionary(field.type) for field in schema]
        parts: list[pa.RecordBatch] = []
        for batch in table.to_batches():
            columns = [c.dictionary_encode() if is_word else c for c, is_word in zip(batch.columns, words, strict=True)]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            parts.append(batch.filter(take(batch)))
        return pa.Table.from_batches(parts, schema)

    def learned(self, before: Mapping[tuple[str, int], Knowledge]) -> dict[tuple[str, int], Knowledge]:
        """What is known of files that was not known `before`."""
        return {key: facts for key, facts in self._facts.copy().items() if before.get(key) is not facts}

    @property
    def known(self) -> dict[tuple[str, int], Knowledge]:
        """What the files of ranks turned out to be."""
        return self._facts.copy()

    def record_table(self, rank: int) -> pa.Table:
        """Step records of one rank, as columns."""
        return self._read("steps", rank, EVERYTHING)

    def stream(self, rank: int, columns: Sequence[str]) -> StepStream | None:
        """Readings of one rank batch by batch; None when they are not in one file: then ask `scan`."""
        paths = files_of_one(self._folders[rank]) if rank in self._folders else []
        return StepStream(paths, columns) if paths else None

    def step_records(self) -> list[tuple[int, StepRecord]]:
        """Every (rank, step record), rank by rank, in the order they were written."""
        return list(self._step_records)

    @cached_property
    def _step_records(self) -> list[tuple[int, StepRecord]]:
        found = self.ahead("steps", EVERYTHING, self.ranks)
        return [(rank, step) for rank, table in found for step in steps_from(table)]

    @property
    def n_rows(self) -> int:
        """How many rows the recording holds: readings and step records."""
        self._know()
        return sum(facts.n_rows for facts in self._facts.values())

    @property
    def site_names(self) -> frozenset[str]:
        """Names of all sites, in no order."""
        self._know()
        return frozenset[str]().union(*(facts.sites for facts in self._facts.values()))

    def sites(self) -> list[str]:
        """Names of all sites in execution order."""
        parts = [
            table.group_by("site", use_threads=False).aggregate([("order", "min"), ("step", "min")])
            for _, table in self.scan(columns=("site", "order", "step"))
        ]
        firsts = pa.concat_tables(parts).group_by("site").aggregate([("order_min", "min"), ("step_min", "min")])
        order = [("order_min_min", "ascending"), ("step_min_min", "ascending"), ("site", "ascending")]
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
            for part in parts_of(folder):
                if not part.stream.exists():
                    continue
                try:
                    found = salvage(part.stream, SCHEMAS[part.kind])
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
        return pa.concat_tables([with_rank(t, r) for r, t in self.ahead(kind, EVERYTHING, self._asked(rank))])

    def _asked(self, rank: int | None) -> list[int]:
        if rank is not None and rank not in self._folders:
            raise UnknownNameError(
                f"rank {rank} is not in the recording",
                where=str(self.directory),
                fix=f"it holds {len(self.ranks)} ranks, {self.ranks[0]} to {self.ranks[-1]}",
            )
        return self.ranks if rank is None else [rank]

    def ahead(self, kind: str, want: Want, ranks: Sequence[int]) -> Iterator[tuple[int, pa.Table]]:
        """Tables of ranks in turn; the next ones are read by threads while the caller looks at one."""
        if len(ranks) < 2 or self._has_all(kind, ranks):
            yield from ((rank, self._read(kind, rank, want)) for rank in ranks)
            return
        with ThreadPoolExecutor(_READERS, thread_name_prefix="hypocenter-read") as pool:
            waiting: OrderedDict[int, Future[pa.Table]] = OrderedDict()
            todo = iter(ranks)
            try:
                while True:
                    while len(waiting) < _AHEAD and (rank := next(todo, None)) is not None:
                        waiting[rank] = pool.submit(self._read, kind, rank, want)
                    if not waiting:
                        return
                    rank, future = waiting.popitem(last=False)
                    yield rank, future.result()
            finally:
                for future in waiting.values():
                    future.cancel()

    def _has_all(self, kind: str, ranks: Sequence[int]) -> bool:
        """Whether their rows are in memory."""
        return all((kind, rank) in self._kept for rank in ranks)

    def _read(self, kind: str, rank: int, want: Want) -> pa.Table:
        """What is wanted of a rank: from memory if it was kept, else from its files."""
        key = kind, rank
        with self._lock:
            kept = self._kept.get(key)
            facts = self._facts.get(key)
        if kept is not None:
            return _taken(kept, want)
        # All of a file is checked at the first read; a damaged one each time, or fewer columns might give more rows.
        if facts is not None and not facts.problems:
            return read_rank(self._folders[rank], kind, want).table
        rows = read_rank(self._folders[rank], kind, Want(where=want.where), room_bytes=self._room_bytes)
        self._remember(key, rows)
        return rows.table if want.columns is None else rows.table.select(list(want.columns))

    def _remember(self, key: tuple[str, int], rows: RankRows) -> None:
        with self._lock:
            self._facts[key] = rows.known
            size = rows.whole.nbytes if rows.whole is not None else 0
            if rows.whole is not None and size <= self._room_bytes:
                self._kept[key] = rows.whole
                self._room_bytes -= size

    def _know(self) -> None:
        """Read what has not been read yet, for what it says about the files."""
        for kind in SCHEMAS:
            unknown = [rank for rank in self.ranks if (kind, rank) not in self._facts]
            for _ in self.ahead(kind, Want(where=nothing), unknown):
                pass

    @property
    def _late_problems(self) -> list[str]:
        self._know()
        problems: list[str] = []
        for rank in self.ranks:
            known = [self._facts[kind, rank] for kind in SCHEMAS]
            problems += dict.fromkeys(problem for facts in known for problem in facts.problems)
            problems += _rank_problems(rank, known, attempts.numbers_of(self.places.get(rank)))
        return problems

    @property
    def attempts(self) -> list[str]:
        """Of a run whose ranks were started again: where each attempt began, and how far the one before had come."""
        numbers = {rank: known for rank, place in self.places.items() if (known := attempts.numbers_of(place))}
        found = {rank: spans_of(self._folders[rank], known) for rank, known in numbers.items()}
        ordered = {r: tuple(sorted(spans.values(), key=lambda s: s.number)) for r, spans in found.items()}
        return attempts.sentences(ordered)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer(Generic[A]):
    """What a worker gives back."""

    value: A
    known: dict[tuple[str, int], Knowledge]


_opened: dict[str, RecordedRun] = {}  # in a worker: the recording that it was asked about last


def _look_in_worker(directory: str, token: str, look: Callable[[RecordedRun, P], A], part: P) -> _Answer[A]:
    recorded = _opened.get(token)
    if recorded is None:
        _opened.clear()
        recorded = _opened[token] = open_run(directory)
    before = recorded.known
    return _Answer(value=look(recorded, part), known=recorded.learned(before))


def _listed(look: Look[Iterator[tuple[int, pa.Table]]], run: RecordedRun, ranks: Sequence[int]) -> list[Any]:
    return list(look(run, ranks))


def _tables_of(
    run: RecordedRun, ranks: Sequence[int], *, want: Want, is_ranked: bool, each: Each | None
) -> Iterator[tuple[int, pa.Table]]:
    for rank, read in run.ahead("events", want, ranks):
        table = with_rank(read, rank) if is_ranked else read
        yield rank, table if each is None else each(run, rank, table)


def _taken(table: pa.Table, want: Want) -> pa.Table:
    """What is wanted of a table that is in memory."""
    if want.where is not None:
        empty = table.schema.empty_table()
        table = pa.concat_tables([empty, *(pa.Table.from_batches([_rows(b, want)]) for b in table.to_batches())])
    return table if want.columns is None else table.select(list(want.columns))


def _rows(batch: pa.RecordBatch, want: Want) -> pa.RecordBatch:
    return batch if want.where is None else batch.filter(want.where(batch))


_RANK = pa.field("rank", pa.int32(), nullable=False)


def with_rank(table: pa.Table, rank: int) -> pa.Table:
    """The table with a column `rank`."""
    return table.append_column(_RANK, pa.array(np.full(table.num_rows, rank, np.int32)))


def ranked(schema: pa.Schema) -> pa.Schema:
    """The columns of such a table."""
    return schema.append(_RANK)


def _rank_problems(rank: int, known: Sequence[Knowledge], numbers: Mapping[str, int]) -> list[str]:
    writers = sorted({writer for facts in known for writer in facts.writers})
    problems: list[str] = []
    if not sum(facts.n_rows for facts in known):
        is_lost = writers or any(facts.problems for facts in known)
        problems.append(f"rank {rank} recorded {'nothing that can be read' if is_lost else 'no step'}")
    if len({numbers.get(writer, writer) for writer in writers}) < len(writers) or (len(writers) > 1 and not numbers):
        problems.append(
            f"rank {rank} was written by {len(writers)} processes, its steps may overlap: {', '.join(writers)}"
        )
    return problems
