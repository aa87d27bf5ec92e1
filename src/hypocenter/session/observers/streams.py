"""What training starts from: the batch of each micro-batch, random states, learning rates of further groups.

Digests of the integer tensors that the model and the loss code were given are taken at every step, in any process: they
say whether two runs saw the same data in the same order. Digests of everything else that the model was called with and
of the random states before the step's first forward follow on the first few steps, in a job of several ranks also on
those of config.replicas, of the random states also on those of config.states. Extremes, mean and spread go with each
digest, and at other steps a sample of the floats is looked at too: they say when data repeat or change. All of it
reaches the host with the next check of gradients.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter import launcher
from hypocenter.batch_numbers import digest, moments
from hypocenter.detect.replica_rows import (
    ATTEMPT,
    BATCH_PORT,
    FIELD_PORT,
    INDICES_PORT,
    LOADER,
    RNG_PORT,
    RNG_PREFIX,
    WORKER_PORT,
)
from hypocenter.nouns import Reading, Summary
from hypocenter.schedule import parse
from hypocenter.session.batch import first_call, given_to_loss_code, given_to_model
from hypocenter.session.batch_readings import BRIEF, FIRST, NOTHING, Asked, Inside, Moments
from hypocenter.session.check import scalar_reading
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.graph_edges import GraphEdges
from hypocenter.session.observers.inside import Told, look, look_at_host
from hypocenter.tap.digest import digests, to_host
from hypocenter.tap.host_digest import MOST_BYTES, host_values
from hypocenter.tap.state import RngState

MAX_SENT = 1024  # micro-batches between two updates; a program that never updates must not pile digests up
_N_MOMENTS = 4
_SHIFTS = (0, 16, 32, 48)  # a digest travels as four numbers below 2**16, which float32 holds exactly


class Streams(Observer):
    """Writes digests of batches and random states, and learning rates."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = parse(context.config.replicas)
        self._is_asked, self._asks_states = parse(context.config.states), context.config.states != "never"
        self._is_never = context.config.replicas == "never"
        self._done_step = -1  # of this step the random states have been looked at
        self._n_events = 0  # of the tape, that belong to earlier micro-batches
        self._n_sent = 0
        self._arrived: list[tuple[Asked, int, Moments]] = []
        self._inside: dict[tuple[int, str], Inside] = {}  # by micro-batch and name
        self._attempt = launcher.attempt(os.environ)
        self._n_handed = -1
        self._edges = GraphEdges(context.clock, context.ride)
        self._handed: list[tuple[int, str, Summary]] = []  # micro-batch, port, what a loader said of its batch

    def before_backward(self, roots: Sequence[Tensor]) -> None:
        """Start to digest a micro-batch, as its forward is over."""
        events = self.context.tape.events
        start = self._n_events if self._n_events <= len(events) else 0
        self._n_events = len(events)
        clock = self.context.clock
        first = first_call(self.context.tape, start, roots)
        if first is None:
            return
        if len(self._handed) < MAX_SENT:
            self._note_loader()
        is_full = clock.step < FIRST or self._is_wanted_over_ranks(clock.step)
        given = given_to_model(events[first], is_full=is_full)
        known = set[int]()
        for _, tensor, _ in given:
            known.add(id(tensor))
        given += given_to_loss_code(events[first + 1 :], known)
        if not given or self._n_sent >= MAX_SENT:
            return
        self._n_sent += 1
        if torch._C._len_torch_dispatch_stack():  # a mode that records every operation
            with _disable_current_modes():
                self._send(given, is_full=is_full)
        else:
            self._send(given, is_full=is_full)

    def _send(self, given: Sequence[tuple[str, Tensor, Tensor]], *, is_full: bool) -> None:
        self._edges.look(given)
        elsewhere: list[tuple[Asked, Tensor]] = []
        microbatch = self.context.clock.microbatch
        arrive = Told(self._inside, microbatch)
        named: list[tuple[str, Tensor, NDArray[Any] | None]] = []
        are_here = True
        for name, whole, _ in given:
            array = host_values(whole)
            named.append((name, whole, array))
            are_here = are_here and array is not None
        if are_here:
            look_at_host(named, arrive)
        else:
            for numbers, read in look(named, arrive):
                self.context.ride(numbers, read)
        for (name, whole, of_whole), (*_, seen) in zip(named, given, strict=True):
            for port, values in _ports(seen, is_full=is_full):
                asked = self._asked(name, whole, port)
                array = of_whole if values is whole else host_values(values)
                if array is not None and array.nbytes <= MOST_BYTES:
                    self._arrived.append((asked, digest(array.view(np.uint8)), moments(array)))
                else:
                    elsewhere.append((asked, values))
        if elsewhere:
            self._start(elsewhere)

    def _start(self, elsewhere: Sequence[tuple[Asked, Tensor]]) -> None:
        by_device: dict[torch.device, list[tuple[Asked, Tensor, Tensor]]] = {}
        for (asked, values), found in zip(elsewhere, digests([values for _, values in elsewhere]), strict=True):
            if found is not None:
                by_device.setdefault(found.device, []).append((asked, found, _moments(values)))
        for device, there in by_device.items():
            parts = (torch.stack([number for _, number, _ in there])[:, None] >> _shifts_on(device)) & 0xFFFF
            numbers = torch.cat([parts.float(), torch.stack([each for *_, each in there])], dim=1)
            self.context.ride(numbers.reshape(-1), _Reader([asked for asked, *_ in there], self._arrived))

    def _asked(self, name: str, whole: Tensor, port: str) -> Asked:
        clock = self.context.clock
        return Asked(
            name=name, port=port, microbatch=clock.microbatch, order=clock.next_order(), n=whole.numel(),
            dtype=str(whole.dtype).removeprefix("torch."), shape=tuple(whole.shape),
        )  # fmt: skip

    def before_update(self, update: Update) -> None:
        """Write the digests that have arrived, what the first forward of the step started from, and learning rates."""
        self._n_events = self._n_sent = 0
        if self._edges.first is not None:
            self.rows += self._edges.take(update.step)
        arrived = self._arrived[:]
        self._arrived.clear()
        for asked, number, told in arrived:
            inside = self._inside.get((asked.microbatch, asked.name), NOTHING)
            self.rows.append(asked.reading(update.step, number, told, inside))
        self._inside.clear()
        if self._attempt:
            summary = Summary(n=self.context.rank()[1], sum=float(self._attempt))
            self._add_number(ATTEMPT, "attempt", summary, update.step)
            self._attempt = 0
        for microbatch, port, summary in self._handed:
            self._add_number(LOADER, port, summary, update.step, microbatch)
        self._handed.clear()
        is_wanted_over_ranks = self._is_wanted_over_ranks(update.step)
        if is_wanted_over_ranks:
            self._rates(update)
        is_asked = update.step < FIRST or (self._asks_states and self._is_asked(update.step))
        if update.step == self._done_step or not (is_asked or is_wanted_over_ranks):
            return
        event = next((e for e in self.context.tape.events if e.module is not None), None)
        if event is None:
            return
        self._done_step = update.step
        states = dict(_random_states(event.rng)) if event.rng is not None else {}
        for name, number in zip(states, to_host(digests([*states.values()])), strict=True):
            if number is not None:
                self.rows.append(
                    Reading(step=update.step, microbatch=0, phase="data", site=RNG_PREFIX + name, port=RNG_PORT,
                            order=self.context.clock.next_order(), summary=Summary(n=1), digest=number)
                )  # fmt: skip

    def _is_wanted_over_ranks(self, step: int) -> bool:
        if self._is_never or self.context.rank()[1] < 2:
            return False
        return step < FIRST or self._is_due(step)

    def _rates(self, update: Update) -> None:
        groups: Any = getattr(update.optimizer, "param_groups", ())
        for index, group in enumerate(groups):
            rate: Any = group.get("lr") if isinstance(group, Mapping) else None
            if index and isinstance(rate, (int, float)):
                order = self.context.clock.next_order()
                self.rows.append(scalar_reading(f"lr.group[{index}]", "optimizer", float(rate), update.step, order))

    def _note_loader(self) -> None:
        handed = self.context.handed()
        if handed is None or handed.number == self._n_handed:
            return
        self._n_handed = handed.number
        if handed.is_stream and handed.n_workers > 1:
            summary = Summary(n=handed.n_workers, sum=float(handed.number))
            self._handed.append((self.context.clock.microbatch, WORKER_PORT, summary))
        elif handed.in_order is not None:
            first, last = handed.in_order
            summary = Summary(n=last - first + 1, min=float(first), max=float(last), absmax=float(handed.n_samples))
            self._handed.append((self.context.clock.microbatch, INDICES_PORT, summary))

    def _add_number(self, site: str, port: str, summary: Summary, step: int, microbatch: int = 0) -> None:
        order = self.context.clock.next_order()
        self.rows.append(
            Reading(step=step, microbatch=microbatch, phase="data", site=site, port=port, order=order, summary=summary)
        )


def _ports(values: Tensor, *, is_full: bool) -> list[tuple[str, Tensor]]:
    """Return what is digested of a tensor: all integers; a sample of floats, and at full steps all of them too."""
    if not (values.is_floating_point() or values.is_complex()):
        return [(BATCH_PORT, values)]
    brief = values if values.numel() <= BRIEF else values.reshape(-1)[:: -(-values.numel() // BRIEF)].contiguous()
    return [(FIELD_PORT, brief), *([(BATCH_PORT, values)] if is_full else [])]


def _moments(values: Tensor) -> Tensor:
    """Return smallest, largest, mean and spread of a sample: float32 [4], on the device."""
    values = torch.view_as_real(values) if values.is_complex() else values
    wide = values.detach().reshape(-1)[:: max(1, values.numel() // BRIEF)].float()
    wide = wide.nan_to_num(nan=math.nan, posinf=math.inf, neginf=0.0)  # an additive mask
    spread, mean = torch.std_mean(wide, correction=0)
    return torch.stack([*torch.aminmax(wide), mean, spread])


class _Reader:
    """Puts digests together again when they have arrived. Holds no tensor."""

    def __init__(self, asked: Sequence[Asked], arrived: list[tuple[Asked, int, Moments]]) -> None:
        self._asked, self._arrived = asked, arrived

    def __call__(self, numbers: Sequence[float]) -> None:
        n = len(_SHIFTS) + _N_MOMENTS
        for index, asked in enumerate(self._asked):
            found = numbers[n * index : n * (index + 1)]
            word = sum(int(part) << shift for part, shift in zip(found, _SHIFTS, strict=False))
            self._arrived.append((asked, word - (1 << 64) if word >> 63 else word, found[len(_SHIFTS) :]))


def _random_states(rng: RngState) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each random generator and its state, as a tensor on the host."""
    yield "cpu", rng.cpu
    if rng.device is not None and rng.device_type is not None:
        yield rng.device_type, rng.device
    _, words, gauss = rng.python
    yield "python", _numbers(words, gauss)
    if rng.numpy is not None:
        _, words, position, has_gauss, cached = rng.numpy
        yield "numpy", _numbers(words, (position, has_gauss, cached))
    for each in rng.trackers:
        package = type(each.tracker).__module__.partition(".")[0]
        yield from ((f"{package}.{name}", state) for name, state in each.numbers().items())


def _numbers(words: Any, rest: Any) -> Tensor:
    rest = 0 if rest is None else hash(rest)  # of floats and ints: not salted; of None it is an address before 3.12
    mixed = np.concatenate([np.asarray(words, dtype=np.int64), [rest]])
    return torch.from_numpy(mixed)


@functools.lru_cache(maxsize=16)
def _shifts_on(device: torch.device) -> Tensor:
    return torch.tensor(_SHIFTS, device=device)
