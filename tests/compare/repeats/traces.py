"""Traces made by hand: a program is a list of short words, and two runs of it differ where their digests do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypocenter.opbits import Event, Place, Read, Trace, Write
from hypocenter.record.bits_file import BitsWriter
from hypocenter.record.layout import rank_directory


class Program:
    """One process of one run; every event has a line of its own, the number of its order or `line`."""

    def __init__(self, process: str = "MainProcess", rank: int = 0, worker: int | None = None, at: int = 0) -> None:
        self.trace, self._at = Trace(process=process, rank=rank, worker=worker), at

    def add(self, kind: Any, name: str, *, line: int | None = None, via: str = "", **fields: Any) -> int:
        """Append an event; its number."""
        n = len(self.trace.events)
        self.trace.places.append(Place(file="train.py", line=n if line is None else line, text=name, via=via))
        step, phase = fields.pop("step", 0), fields.pop("phase", "forward")
        event = Event(n, self._at + n, fields.pop("thread", 0), kind, name, phase, step, 0, n, **fields)
        self.trace.events.append(event)
        return n

    def op(self, name: str, reads: Any = (), out: int | None = 0, **fields: Any) -> int:
        """An operator. `reads`: (writer, digest, ...) each; `out`: the digest of its output, None: not looked at."""
        return self.add(
            "op", name, reads=tuple(Read(*read) for read in reads), writes=(Write(out, "float32 [2]"),), **fields
        )

    def item(self, writer: int, digest: int, **fields: Any) -> int:
        """A value goes to Python."""
        return self.add("op", "aten._local_scalar_dense.default", reads=(Read(writer, digest),), **fields)

    def result(self, name: str, writer: int, digest: int, **fields: Any) -> int:
        """A result of a step."""
        return self.add("result", name, reads=(Read(writer, digest),), writes=(Write(digest),), **fields)


def stored(run: Path, *programs: Program) -> Path:
    """A recording of these processes."""
    for program in programs:
        trace = program.trace
        writer = BitsWriter(rank_directory(run, trace.rank), trace.process, trace.rank)
        if trace.worker is not None:
            writer.worker(trace.worker)
        writer.write([*trace.places, *trace.events])
        writer.parameters(trace.parameters)
    return run
