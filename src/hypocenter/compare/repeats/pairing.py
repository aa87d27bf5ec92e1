"""Events of two runs of one process, side by side: those that differ, and where the runs did other things."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypocenter.opbits import Event, Trace


@dataclass(slots=True, kw_only=True)
class Differs:
    """In what the same event of two runs differs."""

    reads: tuple[bool, ...]  # one for each tensor that was read
    writes: bool
    state: bool  # of the generator before; of a seed, what was given
    choice: bool = False  # other arguments, other tensors, or another part of one: what Python chose

    @property
    def at_all(self) -> bool:
        """Whether they differ in anything."""
        return self.writes or self.state or self.choice or any(self.reads)


@dataclass(slots=True, kw_only=True)
class Pairing:
    """One process, as it was in both runs."""

    a: Trace
    b: Trace
    partner: dict[int, Event] = field(default_factory=dict)  # event of a -> that of b
    differs: dict[int, Differs] = field(default_factory=dict)  # event of a -> in what; only of those that differ
    parted: list[tuple[Event | None, Event | None]] = field(default_factory=list)  # a thread's first that is no pair
    by_n: dict[int, Event] = field(default_factory=dict)  # of a
    results: list[tuple[Event, Event]] = field(default_factory=list)
    steering: list[int] = field(default_factory=list)  # events that differ and whose values went to Python, in order

    @property
    def trains(self) -> bool:
        """Whether the process had results on both sides."""
        return bool(self.results)


def paired(a: Trace, b: Trace) -> Pairing:
    """Pair the events of both in order, thread by thread, until they do other things."""
    pairing = Pairing(a=a, b=b, by_n={event.n: event for event in a.events})
    pairing.results = list(_results(a, b))
    for left, right in zip(_threads(a), _threads(b), strict=False):
        _walk(pairing, left, right)
    for one, other in pairing.results:  # also after the runs have parted
        pairing.partner[one.n] = other
        _note(pairing, one, other)
    pairing.steering = sorted(n for n in pairing.differs if pairing.by_n[n].reads and not pairing.by_n[n].writes)
    return pairing


def of_runs(a: list[Trace], b: list[Trace]) -> Iterator[Pairing]:
    """Yield the pairing of each process that both runs have, by rank and name."""
    others = {(trace.rank, trace.process): trace for trace in b}
    for trace in a:
        other = others.get((trace.rank, trace.process))
        if other is not None:
            yield paired(trace, other)


def _threads(trace: Trace) -> list[list[Event]]:
    """Return all events but results, by thread, in the order in which they came."""
    by_thread: dict[int, list[Event]] = {}
    for event in trace.events:
        by_thread.setdefault(event.thread, [])
        if event.kind != "result":
            by_thread[event.thread].append(event)
    return list(by_thread.values())


def _walk(pairing: Pairing, left: list[Event], right: list[Event]) -> None:
    for one, other in zip(left, right, strict=False):
        if not _is_same(pairing, one, other):
            pairing.parted.append((one, other))
            return
        pairing.partner[one.n] = other
        _note(pairing, one, other)
    n = min(len(left), len(right))
    if len(left) != len(right):
        pairing.parted.append((left[n] if n < len(left) else None, right[n] if n < len(right) else None))


def _is_same(pairing: Pairing, one: Event, other: Event) -> bool:
    return (one.kind, one.name, len(one.reads), len(one.writes)) == (
        other.kind, other.name, len(other.reads), len(other.writes),
    ) and pairing.a.place_of(one) == pairing.b.place_of(other)  # fmt: skip


def _note(pairing: Pairing, one: Event, other: Event) -> None:
    found = Differs(
        reads=tuple(_unequal(x.digest, y.digest) for x, y in zip(one.reads, other.reads, strict=True)),
        writes=any(_unequal(x.digest, y.digest) for x, y in zip(one.writes, other.writes, strict=True)),
        state=one.state != other.state,
        choice=one.kind == "op" and (one.arguments != other.arguments or _reads_others(pairing, one, other)),
    )
    if found.at_all:
        pairing.differs[one.n] = found


def _reads_others(pairing: Pairing, one: Event, other: Event) -> bool:
    """Return whether it reads what another event wrote than in the first run, or another part of it."""
    for x, y in zip(one.reads, other.reads, strict=True):
        writer = pairing.partner.get(x.writer)
        if x.part != y.part or (writer is not None and writer.n != y.writer):
            return True
    return False


def _unequal(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _results(a: Trace, b: Trace) -> Iterator[tuple[Event, Event]]:
    """Yield results of the same name at the same place of training, in the order of a."""
    others = dict(_keyed(b))
    for key, event in _keyed(a):
        if key in others:
            yield event, others[key]


def _keyed(trace: Trace) -> Iterator[tuple[tuple[str, str, int, int, int], Event]]:
    counts: dict[tuple[str, str, int, int], int] = {}
    for event in trace.events:
        if event.kind == "result":
            key = event.name, event.phase, event.step, event.microbatch
            counts[key] = counts.get(key, 0) + 1
            yield (*key, counts[key]), event
