"""The steps of one rank while they are written: each look reads only what has come since the last one.

A process writes each step to its journal, and later, in the same order, to its stream; a sealed file holds the same
rows once more. So the rows of a segment are one sequence, and a count of those that were given is all there is to keep.
A file that several segments were put together in is read only where one of them was gone before all of it was given.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import ipc

from hypocenter.errors import first_line
from hypocenter.nouns import StepRecord
from hypocenter.record import attempts
from hypocenter.record.gather import EVERYTHING
from hypocenter.record.journal import Head, entries
from hypocenter.record.layout import journal_path, sealed_path
from hypocenter.record.parts import Part, parts_of
from hypocenter.record.place_file import read_place
from hypocenter.record.salvage import fitted, salvage, sealed_rows
from hypocenter.record.schema import STEPS, steps_from

MOST_BYTES = 64 << 20  # that one look reads of a file; the next look goes on from there
_UNKNOWN = -1


class _Lean(msgspec.Struct, array_like=True, frozen=True):
    pass


class _Template(_Lean, tag="Template", frozen=True):
    rows: msgspec.Raw  # of norms: not looked at here


class _Row(msgspec.Struct, array_like=True, frozen=True):
    """A step record as a journal holds it: in the order of `schema.STEPS`."""

    step: int
    n_microbatches: int
    loss: float | None
    grad_norm: float | None
    loss_scale: float | None
    lr: float | None
    skipped: bool
    step_ms: float
    tap_ms: float
    n_bad_grads: int
    finding: str


class _Step(_Lean, tag="Step", frozen=True):
    readings: msgspec.Raw
    norms: msgspec.Raw
    steps: list[_Row]


_decode = msgspec.msgpack.Decoder(Head | _Template | _Step).decode


def open_regular(path: Path) -> int:
    """Open a regular file for reading; a link, a pipe or a device is refused. Raises OSError."""
    flags = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))  # as there are
    fd = os.open(path, sum(flags, os.O_RDONLY))
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(f"{path.name} is no regular file")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read the beginning of a regular file. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What came to a rank since the last look."""

    steps: tuple[StepRecord, ...] = ()
    listed: bool = False  # files of the rank came or went: its place may be another
    again: bool = False  # a later attempt has begun: what was given before does not count, look with a new RankTail
    problem: str = ""


class RankTail:
    """Follows the steps of one rank, of all processes that were it.

    Args:
        folder: of the rank.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[str, _WriterTail] = {}
        self._listed_ns = 0

    def look(self) -> News:
        """Return whole steps that were not given yet. Damage is said, never raised; nothing waits."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
            is_listed = changed_ns != self._listed_ns
            if is_listed:
                found: dict[str, list[Part]] = {}
                for part in parts_of(self._folder, ("steps",)):
                    found.setdefault(part.writer, []).append(part)
                if self._tails and found.keys() - self._tails.keys() and self._numbers():
                    return News(again=True)
                for writer, parts in found.items():
                    self._tails.setdefault(writer, _WriterTail()).list(parts)
                self._listed_ns = changed_ns
            rows = {writer: tail.look() for writer, tail in self._tails.items()}
        except OSError as error:
            return News(problem=f"{self._folder.name} cannot be read: {error.strerror or error}")
        problem = next((tail.problem for tail in self._tails.values() if tail.problem), "")
        problem = f"{self._folder.name}/{problem}" if problem else ""
        return News(steps=tuple(self._in_order(rows)), listed=is_listed, problem=problem)

    def _numbers(self) -> dict[str, int]:
        return attempts.numbers_of(read_place(self._folder))

    def _in_order(self, rows: dict[str, list[StepRecord]]) -> Iterator[StepRecord]:
        """Yield steps by attempt, without those that a later attempt has done again."""
        numbers = self._numbers() if len(rows) > 1 else {}
        spans = {
            writer: attempts.Span(number=numbers[writer], first=tail.first_step, last=tail.first_step)
            for writer, tail in self._tails.items()
            if tail.first_step is not None and writer in numbers
        }
        cuts = attempts.cuts(numbers, spans)
        for writer in sorted(rows, key=lambda w: (numbers.get(w, 0), self._tails[w].started_ns)):
            cut = cuts.get(writer)
            yield from (step for step in rows[writer] if cut is None or step.step < cut)


class _WriterTail:
    """Follows the steps of one process: its segments, one after the other."""

    def __init__(self) -> None:
        self.problem, self.started_ns = "", 0
        self.first_step: int | None = None
        self._open: list[tuple[Part, _StepsTail]] = []
        self._standing: frozenset[Path] = frozenset()
        self._last = _UNKNOWN  # segment that was listed
        self._last_step = _UNKNOWN  # that was given

    def list(self, parts: Sequence[Part]) -> None:
        """Take over the list of the segments that there are now, in order."""
        self._standing = frozenset(part.stream for part in parts)
        known = {part.stream for part, _ in self._open}
        for part in parts:
            is_missed = any(part.first <= p.first <= part.last and not tail.is_over for p, tail in self._open)
            if part.stream not in known and (part.last > self._last or is_missed):
                self._open.append((part, _StepsTail(part.stream)))
                self._last = max(self._last, part.last)
        self._open.sort(key=lambda each: (each[0].last, each[0].is_gathered))

    def look(self) -> list[StepRecord]:
        """Return whole steps that were not given yet."""
        given: list[StepRecord] = []
        for part, tail in self._open:
            records = tail.look()
            if part.is_gathered:
                records = [record for record in records if record.step > self._last_step]
            if records:
                self.first_step = records[0].step if self.first_step is None else self.first_step
                self._last_step = max(self._last_step, records[-1].step)
            self.problem, self.started_ns = self.problem or tail.problem, self.started_ns or tail.started_ns
            given += records
        self._open = [(part, tail) for part, tail in self._open if part.stream in self._standing or not tail.is_gone]
        return given


class _StepsTail:
    """Follows the steps of one segment: its stream, its journal, and the sealed file that they become."""

    def __init__(self, stream: Path) -> None:
        self.problem = ""
        self.first_step: int | None = None
        self.started_ns = 0
        self._path, self._journal, self._sealed = stream, _JournalTail(journal_path(stream)), sealed_path(stream)
        self._schema: pa.Schema | None = None
        self._at, self._n_batches = 0, 0  # of the stream: bytes and batches that were read
        self._n_streamed, self._n_given = 0, 0  # rows
        self._n_sealed = _UNKNOWN
        self.is_gone = False  # its files are: it was put together with others

    @property
    def is_over(self) -> bool:
        """Whether all of its steps were given."""
        return self._n_sealed >= 0

    def look(self) -> list[StepRecord]:
        if self._n_sealed >= 0:
            return []
        given: list[StepRecord] = []
        journal = self._journal.look()  # before the stream: what the journal has lost by then is in the stream
        is_there = self._read_stream(given)
        if is_there and self._journal.n_batches == self._n_batches:  # else the stream holds its rows already
            for at, record in enumerate(journal, start=self._n_streamed + self._journal.n_steps - len(journal)):
                self._give(at, record, given)
        if not is_there:
            self._read_sealed(given)
        self.problem = self.problem or self._journal.problem
        return given

    def _give(self, at: int, record: StepRecord, given: list[StepRecord]) -> None:
        """Give the row at this place of the sequence, unless it was given."""
        if at < self._n_given:
            return
        self._n_given = at + 1
        self.first_step = record.step if self.first_step is None else self.first_step
        given.append(record)

    def _read_stream(self, given: list[StepRecord]) -> bool:
        """Read whole batches that came since; return whether there is a stream."""
        try:
            while data := _since(self._path, self._at):
                begin = self._at
                self._read_batches(data, given)
                if self._at == begin:
                    break
        except FileNotFoundError:
            return False
        return True

    def _read_batches(self, data: bytes, given: list[StepRecord]) -> None:
        reader = pa.BufferReader(data)
        while not self.problem and reader.tell() < len(data):
            begin = reader.tell()
            try:
                message = ipc.read_message(reader)
            except Exception:  # its end has not come yet, or never will
                break
            try:
                self._take(message, data[begin : reader.tell()], given)
            except Exception as error:  # hostile bytes: whatever is raised is a verdict on the file
                self.problem = f"{self._path.name}: damaged after {self._n_streamed:,} rows ({first_line(error)})"
                break
            self._at += reader.tell() - begin

    def _take(self, message: ipc.Message, data: bytes, given: list[StepRecord]) -> None:
        if self._schema is None:
            self._schema = schema = ipc.read_schema(pa.py_buffer(data))
            started = (schema.metadata or {}).get(b"hypocenter.started_ns", b"")
            self.started_ns = int(started) if started.isdigit() and len(started) < 20 else 0
            return
        batch = fitted(ipc.read_record_batch(message, self._schema), STEPS)
        for at, record in enumerate(steps_from(batch), start=self._n_streamed):
            self._give(at, record, given)
        self._n_streamed += batch.num_rows
        self._n_batches += 1

    def _read_sealed(self, given: list[StepRecord]) -> None:
        """Read the sealed file, which changes no more: its process has ended well."""
        if (n_rows := sealed_rows(self._sealed)) < 0:
            self.is_gone = not self._sealed.exists()
            return
        if n_rows > self._n_given:
            found = salvage(self._sealed, STEPS, EVERYTHING)
            self.problem, self.started_ns = found.problem, self.started_ns or found.started_ns
            for at, record in enumerate(steps_from(found.table)):
                self._give(at, record, given)
        self._n_sealed = n_rows


class _JournalTail:
    """Follows the step records of a journal.

    Attributes:
        n_batches: that the stream of steps held when the journal was begun; -1 while nothing is known.
        n_steps: records read since then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget(b"")

    def _forget(self, head: bytes) -> None:
        self.n_batches, self.n_steps, self.problem, self._at, self._head = _UNKNOWN, 0, "", 0, head

    def look(self) -> list[StepRecord]:
        """Return the records that came since; all of them if the journal was begun anew."""
        try:
            fd = open_regular(self._path)
        except FileNotFoundError:
            return []
        try:
            head = os.pread(fd, len(self._head), 0)
            if head != self._head:  # emptied, and perhaps filled again: its first entry names the batches, and differs
                self._forget(b"")
            data = b"" if self.problem else _rest(fd, self._at)
        finally:
            os.close(fd)
        return self._entries(data)

    def _entries(self, data: bytes) -> list[StepRecord]:
        found: list[StepRecord] = []
        at = 0
        try:
            for piece, end in entries(data):
                entry, at = _decode(piece), end
                if isinstance(entry, Head):
                    self.n_batches, self._head = max(entry.steps, 1), data[:at]  # a stream begins with an empty batch
                elif isinstance(entry, _Step):
                    found += [StepRecord(**msgspec.structs.asdict(row)) for row in entry.steps]
        except Exception as error:  # hostile bytes: whatever is raised is a verdict on the file
            self.problem = f"{self._path.name}: damaged after {self.n_steps + len(found):,} steps ({first_line(error)})"
        self._at += at
        self.n_steps += len(found)
        return found


def _since(path: Path, at: int) -> bytes:
    """Return what a file holds from an offset on. Raises OSError."""
    fd = open_regular(path)
    try:
        return _rest(fd, at)
    finally:
        os.close(fd)


def _rest(fd: int, at: int) -> bytes:
    size = min(os.fstat(fd).st_size - at, MOST_BYTES)
    return os.pread(fd, size, at) if size > 0 else b""
