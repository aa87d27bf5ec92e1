"""The file of events of one process: one line of JSON each, appended while it runs, readable after SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.opbits import Event, Place, Trace
from hypocenter.record.layout import rank_directories

PREFIX, SUFFIX = "op-bits", ".jsonl"
_HEAD, _PLACE, _EVENT, _WORKER, _NAMES, _CUT = "process", "place", "event", "worker", "parameters", "cut"


class BitsWriter:
    """Appends to the file of this process.

    Args:
        folder: of the rank.
        process: name that no other process of the rank has.
    """

    def __init__(self, folder: Path, process: str, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = (
            PREFIX + ("" if process == "MainProcess" else f"-{process.replace(':', '-').replace(os.sep, '-')}") + SUFFIX
        )
        self._fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._encoder = msgspec.json.Encoder()
        self._put([[_HEAD, process, rank]])

    def write(self, items: list[Place | Event]) -> None:
        """Write places in the order of their numbers, each before the events that name it."""
        self._put([[_PLACE if isinstance(item, Place) else _EVENT, item] for item in items])

    def worker(self, number: int) -> None:
        """Write that this process is a DataLoader's worker."""
        self._put([[_WORKER, number]])

    def parameters(self, names: dict[int, str]) -> None:
        """Write which parameters the events of the set-up made."""
        self._put([[_NAMES, {str(n): name for n, name in names.items()}]])

    def cut(self, why: str) -> None:
        """Write that events are missing from here on."""
        self._put([[_CUT, why]])

    def _put(self, lines: list[Any]) -> None:
        data = b"".join(self._encoder.encode(line) + b"\n" for line in lines)
        while data:
            data = data[os.write(self._fd, data) :]


def read_traces(run: Path) -> Iterator[Trace]:
    """Yield what the processes of a run left, main processes first. A torn last line is left out."""
    for rank, folder in rank_directories(run).items() if run.is_dir() else ():
        for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}"), key=lambda p: (len(p.name), p.name)):
            yield read_trace(path, rank)


def read_trace(path: Path, rank: int = 0) -> Trace:
    """Read the trace of one process from its file."""
    trace = Trace(rank=rank)
    decode = msgspec.json.Decoder(tuple[str, msgspec.Raw]).decode
    event, place = msgspec.json.Decoder(Event).decode, msgspec.json.Decoder(Place).decode
    for line in path.read_bytes().splitlines():
        try:
            if line.startswith(b'["process"'):
                trace.process = msgspec.json.decode(line)[1]
                continue
            kind, body = decode(line)
        except msgspec.DecodeError:
            trace.is_cut = trace.is_cut or "its file is torn"
            break
        if kind == _EVENT:
            trace.events.append(event(body))
        elif kind == _PLACE:
            trace.places.append(place(body))
        elif kind == _NAMES:
            trace.parameters |= {int(n): name for n, name in msgspec.json.decode(body, type=dict[str, str]).items()}
        elif kind == _WORKER:
            trace.worker = msgspec.json.decode(body, type=int)
        elif kind == _CUT:
            trace.is_cut = msgspec.json.decode(body, type=str)
    return trace
