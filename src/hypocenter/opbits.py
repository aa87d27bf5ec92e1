"""What each operator of a program read and wrote, bit for bit, as plain data: what two runs of one program compare.

One process leaves one sequence of events. An event is an operator of torch, a number drawn from a generator of Python
or NumPy, a generator that was seeded, or a result of a step (loss, gradient, parameter).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["op", "draw", "seed", "result"]
OUTSIDE = -1
"""Written by no operator that was seen: data that came from outside, or a parameter that was loaded."""


class Read(msgspec.Struct, frozen=True, array_like=True, kw_only=False):
    """A tensor that an operator read."""

    writer: int  # the event that wrote its storage last, or OUTSIDE
    digest: int | None  # of its bits before the operator ran; None: not looked at
    is_undefined: bool = False  # parts of its storage may never have been written (torch.empty)
    part: int = 0  # digest of which part of its storage it is: offset, shape, strides


class Write(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that an operator wrote."""

    digest: int | None  # None: not looked at (memory that is not written yet, a collective under way)
    form: str = ""  # "float32 [8, 16]"


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where an event happened in the program."""

    site: str = ""  # path of the module
    module: str = ""  # its class
    file: str = ""
    line: int = 0
    function: str = ""
    text: str = ""  # of the line
    via: str = ""  # "loader": inside torch.utils.data, on behalf of that line; "backward of aten.mul.Tensor"


class Event(msgspec.Struct, frozen=True, array_like=True):
    """One event. `n` counts from 0 within its process."""

    n: int
    time_ns: int  # Unix time: orders events of several processes of one machine
    thread: int  # 0 for the one that came first
    kind: Kind
    name: str  # aten.mul.Tensor, random.shuffle, numpy.random.seed, loss, gradient of fc.weight
    phase: str  # setup, data, forward, loss, backward, optimizer
    step: int
    microbatch: int
    place: int  # of the process's table of places
    reads: tuple[Read, ...] = ()
    writes: tuple[Write, ...] = ()
    generator: str = ""  # that it drew from, or seeded: "torch cpu", "numpy.random", "random", ""
    state: int | None = None  # digest of the generator's state before; of what was given, for a seed
    note: str = ""  # the seed given, or the one that torch's generator started from
    arguments: str = ""  # of an operator, those that are no tensors


class Trace(msgspec.Struct, kw_only=True):
    """The events of one process."""

    process: str = "MainProcess"  # as multiprocessing names it: a worker is another one
    rank: int = 0
    worker: int | None = None  # number of a DataLoader's worker
    events: list[Event] = msgspec.field(default_factory=list)
    places: list[Place] = msgspec.field(default_factory=list)
    parameters: dict[int, str] = msgspec.field(default_factory=dict)  # event that set one up -> the parameter's name
    is_cut: str = ""  # why events are missing; empty: none are

    def place_of(self, event: Event) -> Place:
        """Return where an event happened; an empty Place when that is not known."""
        return self.places[event.place] if 0 <= event.place < len(self.places) else Place()
