"""The recording end of the store: one writer per process; each step to its journal, blocks of steps to its two streams.

Nothing here raises into training. What cannot be written is dropped with one warning; `broken` says why.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from hypocenter.nouns import Reading, StepRecord
from hypocenter.record.block import Block
from hypocenter.record.journal import Head, Journal
from hypocenter.record.keeper import Keep, Keeper
from hypocenter.record.layout import FORMAT, journal_path, rank_directory
from hypocenter.record.norm_rows import NormRows
from hypocenter.record.parts import ROWS, WINDOWS, all_parts, segment_name
from hypocenter.record.repair import rows_of
from hypocenter.record.schema import READINGS, STEPS
from hypocenter.record.stream import Stream

STEPS_OF_BLOCK = 256  # a batch costs as much as a thousand of its rows: so many steps make that little
MANY_ROWS = 1 << 9  # of a step: a batch of its own costs less than the journal
ROWS_OF_BLOCK = 1 << 14  # at most, and a step more: some megabytes
KEEPER_S = 30.0  # longest that the end of the program waits for what is old to be rolled up
SEAL_AT_MOST_BYTES = 512 << 20  # a larger stream would hold up the end of the program; about 100 MB are sealed a second


class Writer:
    """Appends to `directory/rank-<rank>`; folder and files are made at the first write.

    In a forked child (another process number) every method does nothing: the streams belong to the parent.

    Args:
        directory: the run directory.
        rank: the global rank of this process.
        warn: takes one line of text; called at most once for values that were mended and once when the writer breaks.
        keep: what may be kept; everything when not given.
    """

    def __init__(self, directory: Path, *, rank: int, warn: Callable[[str], None], keep: Keep | None = None) -> None:
        self.broken = ""
        self._directory, self._folder = directory, rank_directory(directory, rank)
        self._keep = keep
        self._segment, self._n_steps, self._n_past_bytes = 0, 0, 0
        self._rank = rank
        self._warn = warn
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._busy = False
        self._closed = False
        self._has_mended = False
        self._name = ""  # of this process among the writers of its rank
        self._journal: Journal | None = None
        self._block, self._n_writes = Block(self._mended), 0
        self._keeper: Keeper | None = None
        self._events: Stream | None = None
        self._steps: Stream | None = None

    @property
    def bytes_written(self) -> int:
        """The bytes handed to the operating system so far, before sealing."""
        return self._n_past_bytes + self._n_streamed + (self._journal.n_bytes if self._journal else 0)

    @property
    def keeper(self) -> Keeper | None:
        """What rolls up the past; None while no segment has ended."""
        return self._keeper

    @property
    def _n_streamed(self) -> int:
        return sum(stream.file.n_bytes for stream in (self._events, self._steps) if stream)

    def write(self, readings: Sequence[Reading], step: StepRecord | None = None, norms: NormRows | None = None) -> None:
        """Append the readings and norms, then the step, and hand all to the operating system before returning.

        The step goes last: one that can be read has all its readings.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            # A signal handler of this thread may come in between: it must not write into a half-written batch.
            if self.broken or self._closed or self._busy:
                return
            self._busy = True
            try:
                self._append(readings, step, norms)
            except Exception as error:
                self._break(error)
            finally:
                self._busy = False

    def close(self, seal: bool = True) -> None:
        """End the streams; with `seal`, turn them into Parquet. Safe to call twice."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed or self._busy:
                return
            self._closed = True
            try:
                self._finish(seal)
            except Exception as error:
                self._break(error)

    def _append(self, readings: Sequence[Reading], step: StepRecord | None, norms: NormRows | None) -> None:
        if not readings and norms is None and step is None:
            return
        journal = self._journal or self._opened()
        if readings or (norms is not None and norms.norms):
            self._events = self._events or self._stream("events", READINGS)
        if step is not None:
            self._steps = self._steps or self._stream("steps", STEPS)
        steps = [] if step is None else [step]
        has_many = len(readings) >= MANY_ROWS
        if has_many:
            rows, records = rows_of(readings, steps, self._mended)
        else:
            events, ends = self._events, self._steps
            head = Head(events=events.n_batches if events else 0, steps=ends.n_batches if ends else 0)
            rows, records = journal.append(head, readings, norms, steps)
        self._block.add(rows, norms, records)
        self._n_writes += 1
        self._n_steps += len(steps)
        if has_many or self._n_writes >= STEPS_OF_BLOCK or self._block.n_rows >= ROWS_OF_BLOCK:
            self._end_block(journal)
            if self._keep and self._is_segment(self._keep):
                self._end_segment(journal, self._keep)

    def _end_block(self, journal: Journal) -> None:
        """Write to the streams what only the journal holds."""
        for stream, batch in ((self._events, self._block.events()), (self._steps, self._block.steps())):
            if stream is not None and batch is not None:
                stream.append(batch)
        journal.clear()
        self._block, self._n_writes = Block(self._mended), 0

    def _is_segment(self, keep: Keep) -> bool:
        return self._n_steps >= keep.segment_steps or self._n_streamed >= keep.file_bytes

    def _end_segment(self, journal: Journal, keep: Keep) -> None:
        """End the segment: the next step begins new streams, and the keeper looks after these."""
        for stream in (self._events, self._steps):
            if stream is not None:
                stream.close()
        journal.close(remove=True)
        self._n_past_bytes += self._n_streamed
        self._events = self._steps = self._journal = None
        self._segment, self._n_steps = self._segment + 1, 0
        if self._keeper is None:
            self._keeper = Keeper(self._directory, self._folder, self._name, keep, self._say)
        self._keeper.ended(self._segment)

    def _opened(self) -> Journal:
        """Return the journal, under a name that no earlier process has: containers repeat process numbers."""
        if self._segment:
            self._journal = Journal(journal_path(self._path("events")), self._mended)
            return self._journal
        self._folder.mkdir(parents=True, exist_ok=True)
        taken = {part.writer for part in all_parts(self._folder, (*ROWS, WINDOWS))}
        for attempt in range(1, 1000):
            self._name = f"{host_name()}-{self._pid}{'' if attempt == 1 else f'-{attempt}'}"
            if self._name in taken:
                continue
            try:
                self._journal = Journal(journal_path(self._path("events")), self._mended)
            except FileExistsError:
                continue
            return self._journal
        raise FileExistsError(f"a thousand writers named {self._name}")

    def _path(self, kind: str) -> Path:
        return self._folder / segment_name(kind, self._name, self._segment)

    def _stream(self, kind: str, schema: pa.Schema) -> Stream:
        metadata = {
            "hypocenter.format": str(FORMAT),
            "hypocenter.rank": str(self._rank),
            "hypocenter.host": host_name(),
            "hypocenter.pid": str(self._pid),
            "hypocenter.started_ns": str(time.time_ns()),
        }
        return Stream(self._path(kind), schema, metadata)

    def _finish(self, seal: bool) -> None:
        if self._keeper is not None:
            self._keeper.close(KEEPER_S)
        if self._journal is None or self.broken:
            self._abandon()
            return
        self._end_block(self._journal)
        streams = [stream for stream in (self._events, self._steps) if stream]
        for stream in streams:
            stream.close()
        self._journal.close(remove=True)
        if seal:
            for stream in streams:
                if stream.file.n_bytes <= SEAL_AT_MOST_BYTES:
                    _seal(stream.file.path)

    def _abandon(self) -> None:
        """Close the files as they are."""
        for stream in (self._events, self._steps):
            if stream:
                stream.abandon()
        if self._journal:
            self._journal.close(remove=False)

    def _mended(self, error: Exception) -> None:
        if not self._has_mended:
            self._has_mended = True
            self._say(f"some values could not be recorded as they are and were replaced ({_reason(error)})")

    def _break(self, error: Exception) -> None:
        if not self.broken:
            self.broken = _reason(error)
            self._say(f"recording to {self._folder} stopped, training goes on ({self.broken})")
        self._abandon()

    def _say(self, text: str) -> None:
        try:
            self._warn(text)
        except Exception:
            self._warn = lambda _: None


def host_name() -> str:
    """Return this machine's name as a part of a file name."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._") else "_" for c in socket.gethostname())
    return name[:64] or "host"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()[:300]


def _seal(stream: Path) -> None:
    """Seal one stream; a stream that cannot be sealed stays as it is, nothing is lost."""
    try:
        from hypocenter.record.seal import seal_stream  # brings pyarrow.parquet: 80 ms that training need not pay
    except Exception:
        return
    try:
        seal_stream(stream)
    except Exception:
        return
