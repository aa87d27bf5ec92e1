"""The recording end of the store: one writer per process, two streams per rank, one batch per step.

Nothing here raises into training. What cannot be written is dropped with one warning; `broken` says why.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from hypocenter.nouns import Reading, StepRecord
from hypocenter.record.layout import FORMAT, STREAM_SUFFIX, rank_directory
from hypocenter.record.repair import repaired_readings_batch, repaired_steps_batch
from hypocenter.record.schema import READINGS, STEPS, LastColumns, readings_batch, steps_batch
from hypocenter.record.stream import Stream

Row = TypeVar("Row", Reading, StepRecord)

SEAL_AT_MOST_BYTES = 512 << 20  # a larger stream would hold up the end of the program; about 100 MB are sealed a second


class Writer:
    """Appends to `directory/rank-<rank>`; folder and files are made at the first write.

    In a forked child (another process number) every method does nothing: the streams belong to the parent.

    Args:
        directory: the run directory.
        rank: the global rank of this process.
        warn: takes one line of text; called at most once for values that were mended and once when the writer breaks.
    """

    def __init__(self, directory: Path, *, rank: int, warn: Callable[[str], None]) -> None:
        self.broken = ""
        self._folder = rank_directory(directory, rank)
        self._rank = rank
        self._warn = warn
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._busy = False
        self._closed = False
        self._mended = False
        self._events: Stream | None = None
        self._steps: Stream | None = None
        self._columns = LastColumns()

    @property
    def bytes_written(self) -> int:
        """Bytes handed to the operating system so far, before sealing."""
        return sum(stream.bytes_written for stream in (self._events, self._steps) if stream)

    def write(self, readings: Sequence[Reading], step: StepRecord | None = None) -> None:
        """Append the readings, then the step, and hand both to the operating system before returning.

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
                self._append(readings, step)
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

    def _append(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        if len(readings):
            batch = self._batch(readings, lambda rows: readings_batch(rows, self._columns), repaired_readings_batch)
            self._events = self._events or self._open("events", READINGS)
            self._events.append(batch)
        if step is not None:
            batch = self._batch([step], steps_batch, repaired_steps_batch)
            self._steps = self._steps or self._open("steps", STEPS)
            self._steps.append(batch)

    def _batch(
        self,
        rows: Sequence[Row],
        exact: Callable[[Sequence[Row]], pa.RecordBatch],
        repaired: Callable[[Sequence[Row]], pa.RecordBatch],
    ) -> pa.RecordBatch:
        try:
            return exact(rows)
        except Exception as error:
            if not self._mended:
                self._mended = True
                self._say(f"some values could not be recorded as they are and were replaced ({_reason(error)})")
            return repaired(rows)

    def _open(self, kind: str, schema: pa.Schema) -> Stream:
        self._folder.mkdir(parents=True, exist_ok=True)
        host = host_name()
        metadata = {
            "hypocenter.format": str(FORMAT),
            "hypocenter.rank": str(self._rank),
            "hypocenter.host": host,
            "hypocenter.pid": str(self._pid),
            "hypocenter.started_ns": str(time.time_ns()),
        }
        return Stream(self._folder / f"{kind}-{host}-{self._pid}{STREAM_SUFFIX}", schema, metadata)

    def _finish(self, seal: bool) -> None:
        streams = [stream for stream in (self._events, self._steps) if stream]
        for stream in streams:
            if self.broken:
                stream.abandon()
            else:
                stream.close()
        if seal and not self.broken:
            for stream in streams:
                if stream.bytes_written <= SEAL_AT_MOST_BYTES:
                    _seal(stream.path)

    def _break(self, error: Exception) -> None:
        if not self.broken:
            self.broken = _reason(error)
            self._say(f"recording to {self._folder} stopped, training goes on ({self.broken})")
        for stream in (self._events, self._steps):
            if stream:
                stream.abandon()

    def _say(self, text: str) -> None:
        try:
            self._warn(text)
        except Exception:
            self._warn = lambda _: None


def host_name() -> str:
    """This machine's name as a part of a file name."""
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
