"""Trace events as JSON, for chrome://tracing, ui.perfetto.dev and speedscope."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypocenter.exporting.catalogue import Export, exporter
from hypocenter.exporting.timeline import TRACKS, Event, Level, Slice, events_of, notes_of, start_of
from hypocenter.json_answer import plain


@exporter("chrome-trace")
def write(export: Export) -> None:
    """One JSON file: ranks are processes; steps, replays, modules and findings are threads, losses are counters."""
    export.notes.extend(notes_of(export.recording))
    start_ns = min(start_of(export.recording, rank) for rank in export.recording.ranks)
    with export.out.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "otherData": ')
        json.dump({"made by": "hypocenter", "begins at": f"{start_ns} ns Unix time", "notes": export.notes}, file)
        file.write(', "traceEvents": [\n')
        for number, event in enumerate(_events(export, start_ns)):
            file.write(",\n" if number else "")
            json.dump(plain(event), file, allow_nan=False)
        file.write("\n]}\n")


def _events(export: Export, start_ns: int) -> Iterator[dict[str, Any]]:
    for rank in export.recording.ranks:
        yield _name("process_name", rank, 0, f"rank {rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        for number, track in enumerate(TRACKS, 1):
            yield _name("thread_name", rank, number, track)
        for event in events_of(export.recording, rank, export.diagnosis.findings):
            yield {"pid": rank, **_event(event, start_ns)}


def _name(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _event(event: Event, start_ns: int) -> dict[str, Any]:
    """Return the event as JSON, its times in microseconds since the start: since 1970 they would lose nanoseconds."""
    if isinstance(event, Level):
        return {"ph": "C", "name": event.counter, "ts": (event.at_ns - start_ns) / 1000, "args": {"value": event.value}}
    thread = TRACKS.index(event.track) + 1
    if isinstance(event, Slice):
        times = {"ts": (event.begin_ns - start_ns) / 1000, "dur": (event.end_ns - event.begin_ns) / 1000}
        return {"ph": "X", "name": event.name, "tid": thread, **times, "args": event.about}
    return {
        "ph": "i",
        "s": "t",
        "name": event.name,
        "tid": thread,
        "ts": (event.at_ns - start_ns) / 1000,
        "args": event.about,
    }
