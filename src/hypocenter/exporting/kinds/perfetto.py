"""Perfetto's own format, for ui.perfetto.dev and its SQL."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.exporting.catalogue import Export, exporter
from hypocenter.exporting.timeline import COUNTERS, TRACKS, Event, Level, Mark, Slice, Value, events_of, notes_of
from hypocenter.record import protobuf as pb

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type of perfetto/trace/track_event/track_event.proto
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering: by the rank that each track states
_SEQUENCE = 1
_PER_RANK = 64  # numbers of tracks that each rank has


@exporter("perfetto")
def write(export: Export) -> None:
    """One file of track events: ranks are processes; steps, replays, modules, findings and losses are tracks."""
    export.notes.extend(notes_of(export.recording))
    with export.out.open("wb") as file:
        file.write(pb.message(1, pb.varint(10, _SEQUENCE), pb.varint(13, 1)))  # incremental state begins here
        for rank in export.recording.ranks:
            for packet in _descriptors(rank):
                file.write(pb.message(1, pb.varint(10, _SEQUENCE), pb.message(60, packet)))
            for packet in _packets(rank, export):
                file.write(packet)


def _descriptors(rank: int) -> Iterator[bytes]:
    """Yield descriptors of the rank as a process, and of its tracks in our order."""
    process = pb.varint(1, rank + 1) + pb.text(6, f"rank {rank}")  # Perfetto takes process 0 for the idle one
    yield pb.varint(1, _uuid(rank)) + pb.varint(11, _EXPLICIT) + pb.message(3, process)
    for place, name in enumerate((*TRACKS, *COUNTERS), 1):
        track = pb.varint(1, _uuid(rank, name)) + pb.text(2, name) + pb.varint(5, _uuid(rank))
        yield track + pb.varint(12, place) + (pb.message(8) if name in COUNTERS else b"")


def _uuid(rank: int, track: str = "") -> int:
    return 1 + rank * _PER_RANK + (1 + (*TRACKS, *COUNTERS).index(track) if track else 0)


def _packets(rank: int, export: Export) -> Iterator[bytes]:
    """Yield the packets of a rank's events; a slice as its begin and its end, so that those inside come between."""
    open_: dict[str, list[int]] = {}
    for event in events_of(export.recording, rank, export.diagnosis.findings):
        if isinstance(event, Slice):
            ends = open_.setdefault(event.track, [])
            while ends and ends[-1] <= event.begin_ns:
                yield _end(rank, event.track, ends.pop())
            ends.append(event.end_ns)
        yield from _event(rank, event)
    for track, ends in open_.items():
        while ends:
            yield _end(rank, track, ends.pop())


def _event(rank: int, event: Event) -> Iterator[bytes]:
    if isinstance(event, Level):
        if math.isfinite(event.value):  # a counter that is not a number has no place on its axis
            yield _packet(
                event.at_ns,
                pb.varint(9, _COUNTER),
                pb.varint(11, _uuid(rank, event.counter)),
                pb.double(44, event.value),
            )
        return
    kind, at_ns = (_INSTANT, event.at_ns) if isinstance(event, Mark) else (_BEGIN, event.begin_ns)
    about = (pb.message(4, _annotation(name, value)) for name, value in event.about.items())
    yield _packet(at_ns, pb.varint(9, kind), pb.varint(11, _uuid(rank, event.track)), pb.text(23, event.name), *about)


def _end(rank: int, track: str, at_ns: int) -> bytes:
    return _packet(at_ns, pb.varint(9, _END), pb.varint(11, _uuid(rank, track)))


def _packet(at_ns: int, *fields: bytes) -> bytes:
    return pb.message(1, pb.varint(8, at_ns), pb.varint(10, _SEQUENCE), pb.message(11, *fields))


def _annotation(name: str, value: Value) -> bytes:
    named = pb.text(10, name)
    if isinstance(value, str):
        return named + pb.text(6, value)
    return named + (pb.double(5, value) if isinstance(value, float) else pb.varint(4, value))
