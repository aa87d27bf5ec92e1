"""From a result that differs back to the events that nothing before them explains."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hypocenter.compare.repeats.pairing import Pairing
from hypocenter.opbits import OUTSIDE, Event

RootKind = Literal["drew", "op", "outside", "choice", "changed", "undefined", "parted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """An event of the first run, and in what way it is the first of its kind.

    drew: it took random numbers from a generator in another state; op: its inputs agree, its outputs do not; outside:
    it read what no operator wrote; choice: Python gave it other numbers, other tensors or another part of one; changed:
    it read what had agreed when it was written; undefined: it read memory that nobody had written; parted: the other
    run did something else here.
    """

    event: Event
    kind: RootKind
    other: Event | None = None  # of the second run; None when it had ended
    maker: Event | None = None  # of the memory that was changed, or never written


def roots_of(pairing: Pairing) -> list[Root]:
    """Return all roots that reach a result that differs, each event once, in the order of the first run."""
    starts = [one.n for one, _ in pairing.results if one.n in pairing.differs]
    if not starts:
        return []
    found: dict[int, Root] = {}
    seen = set(starts)
    ends = [one.n for one, _ in pairing.parted if one is not None]
    waiting = starts + (_steering(pairing, max(ends)) if ends else [])
    while waiting:
        n = waiting.pop()
        for step in _look(pairing, n):
            if isinstance(step, Root):
                found.setdefault(step.event.n, step)
            elif step not in seen:
                seen.add(step)
                waiting.append(step)
    return sorted(found.values(), key=lambda root: root.event.n)


def _look(pairing: Pairing, n: int) -> Iterator[Root | int]:
    """Yield the roots at this event, and the numbers of earlier events that explain it."""
    event = pairing.by_n.get(n)
    if event is None:
        return
    other = pairing.partner.get(n)
    if other is None:  # the other run did something else: whatever it read may be the reason
        yield from _parted(pairing, event)
        return
    differs = pairing.differs.get(n)
    if differs is None:
        return
    if differs.choice:
        behind = _steering(pairing, n) + [read.writer for read in event.reads if read.writer in pairing.differs]
        yield from behind or [Root(event=event, kind="choice", other=other)]
        return
    if differs.state and event.kind == "op":
        yield Root(event=event, kind="drew", other=other)
    if event.kind == "op" and not differs.state and not any(differs.reads):
        yield Root(event=event, kind="op", other=other)
    for read, is_other in zip(event.reads, differs.reads, strict=True):
        if is_other:
            yield from _behind(pairing, event, other, read.writer, is_undefined=read.is_undefined)


def _behind(pairing: Pairing, event: Event, other: Event, writer: int, *, is_undefined: bool) -> Iterator[Root | int]:
    made = pairing.by_n.get(writer)
    if writer == OUTSIDE or made is None:
        yield Root(event=event, kind="outside", other=other)
    elif writer not in pairing.partner or (writer in pairing.differs and pairing.differs[writer].at_all):
        yield writer
    elif made.name.startswith(("c10d", "_c10d")):  # what other ranks sent: they are compared too
        return
    else:
        yield Root(event=event, kind="undefined" if is_undefined else "changed", other=other, maker=made)


def _parted(pairing: Pairing, event: Event) -> Iterator[Root | int]:
    for one, other in pairing.parted:
        if one is not None and one.thread == event.thread:
            yield Root(event=one, kind="parted", other=other)
    yield from (read.writer for read in event.reads if read.writer in pairing.differs)


def _steering(pairing: Pairing, end: int) -> list[int]:
    """Return the events before this one that differ and whose values went to Python: `if loss.item() > ...`."""
    return pairing.steering[: bisect_left(pairing.steering, end)]
