"""A neighbour's micro-batch on this device: the calls are our own, the values and random states that went in are its.

Only ranks that hold the same parameters can do each other's work. What a step looks like (functions, lines, plain
arguments, shapes of nothing) must be the same on both; else the parcel is declined.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from hypocenter.replay.deadline import Deadline
from hypocenter.replay.engine import Replayer
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.triage.wire_format import PackedCall, Parcel, pack, pack_rng, unpack, unpack_rng
from hypocenter.tap.numerics import capture_numerics
from hypocenter.tap.state import accelerator_type
from hypocenter.tap.tape import PLACEHOLDERS, Event, Microbatch, Tape
from hypocenter.tap.tree import replace_tensors, tensors

AT_MOST_BYTES = 256 << 20  # of one parcel
_PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device)


def alike() -> str:
    """Describe what must be the same for two devices to compute the same bits."""
    device = accelerator_type()
    name = getattr(getattr(torch, device or "cpu"), "get_device_name", lambda: "")()  # MPS and CPUs have none
    chosen_by_time = f"{socket.gethostname()}/{os.getpid()}" if torch.backends.cudnn.benchmark else ""
    settings = (
        torch.__version__, name, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(),
        *capture_numerics().values, chosen_by_time,
    )  # fmt: skip
    return " ".join(map(str, settings))


def parcel(tape: Tape, microbatch: Microbatch) -> Parcel:
    """Pack what a neighbour needs to do this micro-batch."""
    machine = alike()
    if microbatch.why_not:
        return Parcel(alike=machine, why_not=microbatch.why_not)
    events = tape.slice(microbatch)
    if why := tape.mutated(events):
        return Parcel(alike=machine, why_not=why)
    try:
        calls = tuple(_packed_call(event, number) for event, number in _numbered(events))
        seeds = tuple(None if seed is None else pack(seed) for seed in microbatch.seeds)
    except NotImplementedError as error:
        return Parcel(alike=machine, why_not=str(error))
    if sum(len(t.data) for call in calls for t in (*call.tensors, *call.buffers)) > AT_MOST_BYTES:
        return Parcel(alike=machine, why_not=f"its inputs are larger than {AT_MOST_BYTES >> 20} MiB")
    return Parcel(alike=machine, calls=calls, seeds=seeds)


def borrowed(
    parcel: Parcel,
    tape: Tape,
    microbatch: Microbatch,
    paused: Callable[[], contextlib.AbstractContextManager[None]],
    deadline: Deadline | None = None,
) -> tuple[Replayer, Microbatch]:
    """Return a replayer that does the neighbour's micro-batch in place of our own, and that micro-batch.

    Raises:
        ReplayImpossible: our own step is not made of the same calls, or one side cannot be replayed.
    """
    if parcel.why_not or microbatch.why_not:
        raise ReplayImpossible(parcel.why_not or microbatch.why_not)
    events = tape.slice(microbatch)
    ours = [_looks(event, number) for event, number in _numbered(events)]
    if ours != [call.looks for call in parcel.calls] or len(parcel.seeds) != len(microbatch.seeds):
        raise ReplayImpossible("the neighbour's step is not made of the same calls")
    with torch.enable_grad():
        theirs = [_with(event, call) for (_, event), call in zip(events, parcel.calls, strict=True)]
        device = _device(events)
        seeds: list[torch.Tensor | None] = [None if s is None else unpack(s, device) for s in parcel.seeds]
    replayer = Replayer(_Lent(tape, theirs), paused, deadline=deadline)  # type: ignore[arg-type]
    return replayer, replace(microbatch, seeds=seeds)


class _Lent:
    """What a replayer needs of a tape, for one micro-batch."""

    def __init__(self, own: Tape, events: Sequence[Event]) -> None:
        self.microbatches, self.events = own.microbatches, list(events)

    def slice(self, microbatch: Microbatch) -> list[tuple[int, Event]]:
        """Return all events with their positions."""
        return list(enumerate(self.events))

    def mutated(self, events: Any) -> str:
        """Return "": nobody else has these tensors, so none was changed."""
        return ""


def _numbered(events: Sequence[tuple[int, Event]]) -> list[tuple[Event, dict[int, int]]]:
    """Return each event with the numbers of slots so far, counted from 0 in this micro-batch."""
    numbers: dict[int, int] = {}
    found: list[tuple[Event, dict[int, int]]] = []
    for _, event in events:
        found.append((event, dict(numbers)))
        for slot in event.slots:
            numbers[slot] = len(numbers)
    return found


def _looks(event: Event, numbers: dict[int, int]) -> str:
    """Return a call as text: equal texts are the same call on other values."""
    function = event.function
    name = (
        type(function).__qualname__ if event.module is not None else getattr(function, "__name__", repr(type(function)))
    )
    found = [f"{name} {event.training} {event.ambient} {event.numerics} {event.line}"]
    for path, tensor in tensors((event.args, event.kwargs)):
        slot = PLACEHOLDERS.number(tensor)
        kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else str(tensor.dtype)
        found.append(f"{path}={kind if slot is None else f'#{numbers.get(slot)}'}")
    found += (f"{key}:{value}" for key, value in _plain((event.args, event.kwargs)))
    found += (f"buffer {key}" for _, key, _ in event.buffers)
    return "; ".join(found)


def _plain(value: Any, path: str = "", depth: int = 0) -> list[tuple[str, Any]]:
    """Return the numbers and texts among arguments, with their paths."""
    if isinstance(value, _PLAIN):
        return [(path, value)]
    if depth > 4:
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [found for key, item in items for found in _plain(item, f"{path}[{key}]", depth + 1)]


def _outside(event: Event) -> list[torch.Tensor]:
    """Return the tensors among the arguments that are neither parameters nor made by earlier calls, once each."""
    found: dict[int, torch.Tensor] = {}
    for _, tensor in tensors((event.args, event.kwargs)):
        if PLACEHOLDERS.number(tensor) is None and not isinstance(tensor, torch.nn.Parameter):
            found.setdefault(id(tensor), tensor)
    return list(found.values())


def _packed_call(event: Event, numbers: dict[int, int]) -> PackedCall:
    return PackedCall(
        _looks(event, numbers),
        tuple(pack(t) for t in _outside(event)),
        tuple(pack(before) for _, _, before in event.buffers),
        pack_rng(event.rng),
    )


def _with(event: Event, call: PackedCall) -> Event:
    """Return our call with their values."""
    own = _outside(event)
    if len(own) != len(call.tensors) or len(event.buffers) != len(call.buffers):
        raise ReplayImpossible("the neighbour's step has other inputs")
    theirs = {id(tensor): unpack(packed, tensor.device) for tensor, packed in zip(own, call.tensors, strict=True)}

    def swap(tensor: torch.Tensor) -> torch.Tensor:
        return theirs.get(id(tensor), tensor)

    return replace(
        event,
        args=replace_tensors(event.args, swap),
        kwargs=replace_tensors(event.kwargs, swap),
        buffers=[
            (owner, key, unpack(packed, before.device))
            for (owner, key, before), packed in zip(event.buffers, call.buffers, strict=True)
        ],
        rng=unpack_rng(call.rng, event.rng),
    )


def _device(events: Sequence[tuple[int, Event]]) -> torch.device:
    return next((t.device for _, event in events for t in _outside(event)), torch.device("cpu"))
