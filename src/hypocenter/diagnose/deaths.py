"""Findings of programs that died, with what the dying process found out about the call that raised."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hypocenter.detect.endings import Job
from hypocenter.diagnose.evidence import Evidence, OpFacts
from hypocenter.diagnose.group import Folded
from hypocenter.diagnose.judged_evidence import JudgedEvidence, RunEvidence
from hypocenter.diagnose.records import Records
from hypocenter.nouns import Finding
from hypocenter.record.liveness import liveness
from hypocenter.record.reader import RecordedRun
from hypocenter.record.whereabouts import Whereabouts

CODE = "HC324"  # the program died
_OF_RANKS = "HC321"  # one rank did, and the others waited for it
_TRIGGER = "crash"
_MOST_WORDS = 80  # characters of an error's text, in a title
_DEVICE = "device"  # fact of evidence: what broke, a device or a collective
_ASSERT = "device-side assert"  # a kernel of the program's found an index or a value that must not be
_RECENT_STEPS = 50  # that say how long a step takes


def apart(pieces: RunEvidence) -> tuple[RunEvidence, tuple[JudgedEvidence, ...]]:
    """Return the evidence of failures of numbers, and that of exceptions."""
    found = [e for e in pieces.found if e.evidence.trigger != _TRIGGER]
    deaths = tuple(e for e in pieces.found if e.evidence.trigger == _TRIGGER)
    return replace(pieces, found=tuple(found)), deaths


def explained(found: Sequence[Finding], deaths: Sequence[JudgedEvidence]) -> list[Finding]:
    """Return the findings, those of a death with its cause, and those of broken devices that no death tells of."""
    broken = [e for e in deaths if _DEVICE in e.evidence.facts]
    lost = [f for f in found if f.code in (CODE, _OF_RANKS)]
    told = [_explained(f, deaths) if f.code in (CODE, _OF_RANKS) else f for f in found]
    new = [e for e in broken if e.evidence.facts[_DEVICE] == "device" and e.finding.rank not in {f.rank for f in lost}]
    if not new and not lost:  # of collectives that broke off on several ranks one is told, if nothing else is known
        new = broken[:1]
    return [*told, *{e.finding.rank: _of_device(e.evidence) for e in reversed(new)}.values()]


def with_deaths(folded: Sequence[Folded], dead: Sequence[Finding]) -> tuple[Folded, ...]:
    """Put deaths among the other findings: after numbers that went wrong they are a consequence."""
    first = next((i for i, f in enumerate(folded) if f.finding.severity == "error"), None)
    found = list(folded)
    for finding in dead:
        if first is not None and found[first].finding.step <= finding.step:
            leader = found[first].finding
            source = finding.source
            place = f" ({source.file.rpartition('/')[2]}:{source.line})" if source is not None else ""
            then = (*leader.then, f"{finding.title}{place}")
            found[first] = replace(found[first], finding=replace(leader, then=then))
        else:
            found.insert(0, Folded(finding=finding, is_located=True))
            first = 0
    return tuple(found)


def _of_device(evidence: Evidence) -> Finding:
    """Make the finding that a device gave no more results; the program went on, or its end is not known."""
    is_device = evidence.facts[_DEVICE] == "device"
    return Finding(
        code=CODE, kind="crash" if is_device else "comm", severity="error",
        title=f"{_seen(evidence)} at step {evidence.step}", step=evidence.step, microbatch=evidence.microbatch,
        rank=evidence.rank, source=evidence.path[0].source if evidence.path else None,
        cause="program-error" if _ASSERT in str(evidence.facts.get("text")) else "unknown",
        why=tuple(_why_device(evidence)), confidence="proven",
    )  # fmt: skip


def _seen(evidence: Evidence) -> str:
    what = "a device error" if evidence.facts[_DEVICE] == "device" else "an aborted collective"
    return f"{what} was first seen"


def _why_device(evidence: Evidence) -> Iterator[str]:
    place = evidence.facts.get("seen_in")
    yield f"{evidence.facts.get('type')}: {evidence.facts.get('text')}"
    yield f"{_seen(evidence)} at step {evidence.step}{f', in {place}' if place else ''}"
    yield (
        "a device runs behind the program: the line that is named is where it was noticed; CUDA_LAUNCH_BLOCKING=1 "
        "(ASCEND_LAUNCH_BLOCKING=1) makes it the one that failed"
    )


def _explained(finding: Finding, deaths: Sequence[JudgedEvidence]) -> Finding:
    broken = [e.evidence for e in deaths if e.finding.rank == finding.rank and _DEVICE in e.evidence.facts]
    if broken:
        first = min(broken, key=lambda each: (each.step, "seen_in" not in each.facts))  # before the program met it
        words = f"died of {str(first.facts.get('text'))[:_MOST_WORDS]}"
        title = finding.title.replace(f"died of {first.facts.get('type')}", words)
        finding = replace(finding, why=(*_why_device(first), *finding.why), title=title)
    own = (e for e in deaths if e.finding.rank == finding.rank and "seen_in" not in e.evidence.facts)
    shown = next((e for e in own if e.evidence.step == finding.step), None)
    if shown is None:
        return finding
    evidence, known = shown.evidence, shown.finding
    source = evidence.path[0].source if evidence.path else None
    finding = replace(
        finding,
        source=source or finding.source,
        why=(*finding.why, *_stack(evidence)),
        phase=evidence.origin.phase if evidence.origin is not None else finding.phase,
    )
    if "memory" in evidence.facts:
        title = f"the program ran out of memory at step {finding.step}" if finding.code == CODE else finding.title
        return replace(finding, title=title, cause="out-of-memory")
    if evidence.origin is not None:
        origin = evidence.origin
        why = (*_given(origin), *finding.why)
        finding = replace(finding, op=origin.op, site=origin.site or finding.site, why=why)
    if known.cause == "unknown":
        return finding
    return replace(
        finding, kind=known.kind if finding.code == CODE else finding.kind, cause=known.cause,
        confidence=known.confidence, samples=known.samples, limit=known.limit, actual=known.actual,
        why=(known.title, *known.why, *finding.why), remedy=known.remedy, port=None,
    )  # fmt: skip


def _given(origin: OpFacts) -> Iterator[str]:
    """Say what was not finite among the inputs of the call: often why it raised."""
    for tensor in origin.inputs:
        counts = (("NaN", tensor.summary.n_nan), ("+inf", tensor.summary.n_posinf), ("-inf", tensor.summary.n_neginf))
        held = ", ".join(f"{name} ×{n:,}" for name, n in counts if n)
        if held:
            yield f"{tensor.name} was not finite when {origin.op} was called: {held}"


def _stack(evidence: Evidence) -> tuple[str, ...]:
    """Say which frames of the program are around the innermost one."""
    sources = [op.source for op in evidence.path[1:] if op.source is not None]
    calls = [f"{s.file.rpartition('/')[2]}:{s.line} {s.text}" for s in sources]
    return (f"called from {'; '.join(calls)}",) if calls else ()


def jobs_of(recorded: RecordedRun, records: Records) -> list[Job]:
    """Return the job as rules about its end see it: each attempt of an elastic job by itself, the latest last.

    Args:
        recorded: an open recording.
        records: step records of all ranks.
    """
    attempts: dict[int, dict[int, Whereabouts]] = {}
    for attempt, found in recorded.earlier_whereabouts.items():
        attempts.setdefault(attempt, {}).update(found)
    for rank, seen in recorded.whereabouts.items():
        attempts.setdefault(seen.attempt, {})[rank] = seen
    latest = max(attempts, default=0)
    return [_job(recorded, records, attempts.get(n, {}), n, n == latest) for n in sorted({*attempts, latest})]


def _job(
    recorded: RecordedRun,
    records: Records,
    whereabouts: Mapping[int, Whereabouts],
    attempt: int,
    is_latest: bool,
) -> Job:
    newest = max(whereabouts.values(), key=lambda w: w.started_ns, default=None)
    size = newest.world_size if newest is not None else 0
    found = {rank: w for rank, w in whereabouts.items() if rank < size and w.rank == rank}
    first, last = records.first_steps(), records.last_steps()
    recent = [record.step_ms for record in records.latest(_RECENT_STEPS)]
    return Job(
        run=recorded.run,
        attempt=attempt,
        is_latest=is_latest,
        now_ns=time.time_ns(),
        ranks=tuple(recorded.ranks),
        whereabouts=found,
        liveness={rank: liveness(w) for rank, w in found.items() if not w.has_ended and not w.has_raised},
        first_steps=first,
        last_steps=last,
        step_s=statistics.median(recent) / 1000.0 if recent else 0.0,
        places=recorded.places,
        problems=tuple(recorded.problems),
    )
