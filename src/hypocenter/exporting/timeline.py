"""A recording as a timeline: one process for each rank, with tracks of slices, marks and counters.

A recording holds how long each step took and how much of that was spent inside of Hypocenter. It does not hold when a
module ran, when in a step a replay or an agreement began, or how long the ranks waited for each other. What is drawn
without a time of its own says so in its track's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.diagnose.judged_evidence import load
from hypocenter.nouns import Finding, StepRecord
from hypocenter.record.reader import RecordedRun
from hypocenter.record.schema import steps_from
from hypocenter.record.step_numbers import numbers_of

STEPS = "steps"
INSIDE = "inside Hypocenter (all of a step's, drawn at its end)"
REPLAYS = "replays (drawn over all that was spent inside Hypocenter)"
AGREEMENT = "replayed together with other ranks (no times of the agreement)"
MODULES = "modules (in order, no times)"
FINDINGS = "findings"
TRACKS = (STEPS, INSIDE, REPLAYS, AGREEMENT, MODULES, FINDINGS)
"""Tracks of slices and marks, from top to bottom."""
COUNTERS = ("loss", "grad_norm", "loss_scale", "lr")
NO_TIME_NS = 1_000_000  # a step of a recording that has no times, as imported ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that took from `begin_ns` to `end_ns`; slices of a track lie beside or inside each other."""

    track: str
    name: str
    begin_ns: int
    end_ns: int
    about: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at one moment."""

    track: str
    name: str
    at_ns: int
    about: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A counter has this value from here on."""

    counter: str
    value: float
    at_ns: int


Event = Slice | Mark | Level


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """When a step began and ended, in Unix nanoseconds, as far as it can be told."""

    record: StepRecord
    begin_ns: int
    end_ns: int


def spans_of(recording: RecordedRun, rank: int) -> list[StepSpan]:
    """Return the steps of a rank one after the other, from the start of its process on.

    Only lengths are recorded. What lay between the start and the first step, and pauses for evaluation that a step's
    length does not hold, are not known.
    """
    at = start_of(recording, rank)
    spans: list[StepSpan] = []
    for step in steps_from(recording.steps(rank)):
        length = round(step.step_ms * 1e6) if 0 < step.step_ms < 1e12 else NO_TIME_NS
        spans.append(StepSpan(record=step, begin_ns=at, end_ns=at + length))
        at += length
    return spans


def notes_of(recording: RecordedRun) -> list[str]:
    """Say in sentences what the times of this recording mean."""
    notes = [
        "steps follow each other from the start of each rank's process: a recording holds how long each took, not when",
        "modules have no times: they are drawn in their order, over their step",
    ]
    records = recording.step_records()
    n_without = sum(step.step_ms <= 0 for _, step in records)
    if n_without == len(records):
        notes = ["the recording has no times: each step is drawn 1 ms long", notes[1]]
    elif n_without:
        notes.append(f"{n_without:,} steps have no time and are drawn 1 ms long")
    if len(recording.ranks) > 1:
        notes.append(
            "ranks stand as the clocks of their machines do; how long they waited for each other is not recorded"
        )
    return notes


def events_of(recording: RecordedRun, rank: int, findings: Iterable[Finding]) -> Iterator[Event]:
    """Yield all that is drawn of a rank, track by track."""
    spans = spans_of(recording, rank)
    files = [(owner, path) for owner, path in recording.evidence_files() if owner == rank]
    evidence = {piece.evidence.id: piece.evidence for piece in load(files, recording.directory).found}
    for span in spans:
        step = span.record
        about: dict[str, Value] = {"step": step.step, **numbers_of(step)}
        yield Slice(track=STEPS, name=f"step {step.step}", begin_ns=span.begin_ns, end_ns=span.end_ns, about=about)
        for name in COUNTERS:
            if (value := getattr(step, name)) is not None:
                yield Level(counter=name, value=value, at_ns=span.end_ns)
        inside_ns = min(round(max(step.tap_ms, 0.0) * 1e6), span.end_ns - span.begin_ns) if step.tap_ms < 1e12 else 0
        if inside_ns:
            begin_ns = span.end_ns - inside_ns
            yield Slice(
                track=INSIDE, name="Hypocenter", begin_ns=begin_ns, end_ns=span.end_ns, about={"ms": step.tap_ms}
            )
            if (found := evidence.get(step.finding)) is not None and found.replayed:
                facts: dict[str, Value] = {"trigger": found.trigger, "reproduced": str(found.reproduced)}
                if found.cure is not None:
                    facts |= {"replays for the cure": found.cure.replays, "seconds for the cure": found.cure.seconds}
                yield Slice(
                    track=REPLAYS, name=f"replay of {found.id}", begin_ns=begin_ns, end_ns=span.end_ns, about=facts
                )
                if found.together:
                    name = f"step {step.step} with {found.world_size} ranks"
                    yield Slice(track=AGREEMENT, name=name, begin_ns=begin_ns, end_ns=span.end_ns)
    when = {span.record.step: span for span in spans}
    yield from _modules(recording, rank, when)
    for finding in findings:
        if finding.rank == rank and finding.step in when:
            facts = {"title": finding.title, "cause": finding.cause, "site": finding.site or "the model"}
            yield Mark(
                track=FINDINGS, name=f"{finding.severity} {finding.code}", at_ns=when[finding.step].end_ns, about=facts
            )


def start_of(recording: RecordedRun, rank: int) -> int:
    """Return when the process of a rank was started, in Unix nanoseconds; if unknown when the run was, else 0."""
    place = recording.places.get(rank)
    if place is not None and place.attempts and place.attempts[0].started_ns > 0:
        return place.attempts[0].started_ns
    try:
        began = datetime.fromisoformat(recording.run.started.replace("Z", "+00:00"))
    except ValueError:
        return 0
    return int((began if began.tzinfo else began.replace(tzinfo=timezone.utc)).timestamp() * 1e9)


def _modules(recording: RecordedRun, rank: int, when: dict[int, StepSpan]) -> Iterator[Slice]:
    """Yield the calls of modules, each over the share of its step that lies between its first and last reading."""
    for step, calls in calls_by_step(recording, rank):
        if (span := when.get(step)) is None:
            continue
        first, last = calls[0].first, max(call.last for call in calls)
        unit_ns = (span.end_ns - span.begin_ns) / (last - first + 1)
        for call in calls:
            yield Slice(
                track=MODULES, name=call.name, begin_ns=span.begin_ns + int((call.first - first) * unit_ns),
                end_ns=span.begin_ns + int((call.last - first + 1) * unit_ns), about=call.about,
            )  # fmt: skip


_PHASES = ("forward", "loss", "backward")
_COLUMNS = ("step", "microbatch", "phase", "site", "order", "call", "module", "op", "recompute")

Value = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a module or operator; `first` and `last` are places in the step's order."""

    name: str
    first: int
    last: int
    about: dict[str, Value]


def calls_by_step(recording: RecordedRun, rank: int) -> Iterator[tuple[int, list[Call]]]:
    """Yield each step that has calls, with them: outer calls before inner ones, none across another's end."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for _, table in recording.scan(_is_call, columns=_COLUMNS, ranks=[rank]):
        for batch in table.to_batches(8192):
            for row in batch.to_pylist():
                rows.setdefault(row["step"], []).append(row)
    yield from ((step, _nested(_calls(seen))) for step, seen in sorted(rows.items()))


def _is_call(batch: pa.RecordBatch) -> pa.Array:
    return pc.is_in(batch["phase"], value_set=pa.array(_PHASES))  # pyright: ignore[reportAttributeAccessIssue]


def _calls(rows: list[dict[str, Any]]) -> list[Call]:
    found: dict[tuple[object, ...], Call] = {}
    for row in rows:
        alone = row["order"] if row["op"] else None  # an operator is seen once
        key = row["microbatch"], row["phase"], row["site"], row["call"], row["recompute"], alone
        known = found.get(key)
        if known is None:
            name = row["op"] or row["site"] or "the model"
            about: dict[str, Value] = {
                k: row[k] for k in ("phase", "microbatch", "site", "call", "module") if row[k] != ""
            }
            about |= {"again": "recomputed"} if row["recompute"] else {}
            found[key] = Call(name=name, first=row["order"], last=row["order"], about=about)
        else:
            found[key] = replace(known, first=min(known.first, row["order"]), last=max(known.last, row["order"]))
    return sorted(found.values(), key=lambda call: (call.first, -call.last))


def _nested(calls: list[Call]) -> list[Call]:
    """Let a call that would end after the one around it end with that: backward is not seen in such an order."""
    open_until: list[int] = []
    nested: list[Call] = []
    for call in calls:
        while open_until and open_until[-1] < call.first:
            open_until.pop()
        last = min([call.last, *open_until[-1:]])
        open_until.append(last)
        nested.append(replace(call, last=last))
    return nested
