"""Which rank stopped first: the one that the others have lost, told from those that only followed.

An exception of a rank's own, or silence, comes first; a lost connection, a timeout or a SIGTERM follows from it. Where
all ranks ended alike, none is accused: the job was ended as a whole, or the program failed on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

from hypocenter.detect.endings import SKEW_S, Ending, How, Job
from hypocenter.detect.waiting import Wait, is_waiting, waits
from hypocenter.nouns import Confidence, Severity
from hypocenter.record.whereabouts import Whereabouts

STUCK_S = 60.0  # a rank that lives may save a checkpoint while the others wait: longer than this is worth a warning
SLOW_STEPS = 20  # ... and longer than so many steps
LATER_S = 5.0  # ranks killed at once fall silent this close together, also over several machines
WORTH_SAYING_S = 10.0  # a wait of a running job that is told as a fact

LostHow = Literal["raised", "silent", "terminated", "stopped", "left", "absent", "stuck", "as a whole", "on all ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The ranks that were lost first, and how the job as a whole ended."""

    ranks: tuple[int, ...]  # lost first in front; with "as a whole" and "on all ranks": all of them
    how: LostHow
    severity: Severity
    confidence: Confidence
    ends: dict[int, Ending]
    waits: tuple[Wait, ...] = ()
    is_live: bool = False
    waited_s: float = 0.0  # how long the others have waited


def loss_of(job: Job) -> Loss | None:
    """Return what the job has lost; None if it goes on, has finished, or too little is known of it."""
    if job.world_size < 2 or not job.whereabouts:
        return None
    ends = job.ends
    found = waits(job.whereabouts)
    is_live = any(end.how in ("running", "stopped") for end in ends.values())

    def loss(
        ranks: Collection[int], how: LostHow, severity: Severity = "error", confidence: Confidence = "likely"
    ) -> Loss:
        ordered = tuple(sorted(ranks, key=lambda r: (ends[r].at_s, r)))
        return Loss(
            ranks=ordered, how=how, severity=severity, confidence=confidence, ends=ends, waits=tuple(found),
            is_live=is_live, waited_s=_waited_s(job, ends, found[0]) if found else 0.0,
        )  # fmt: skip

    by: dict[How, tuple[int, ...]] = {how: tuple(r for r, end in ends.items() if end.how == how) for how in _ALL}
    return _loss(job, ends, by, found, loss)


_ALL: tuple[How, ...] = (
    "left", "torn", "raised", "lost peer", "terminated", "silent", "stopped", "running", "absent", "unknown",
)  # fmt: skip
_Say = Callable[..., Loss]


def _loss(
    job: Job, ends: dict[int, Ending], by: dict[How, tuple[int, ...]], found: list[Wait], say: _Say
) -> Loss | None:
    known = [rank for how in _ALL if how not in ("absent", "unknown") for rank in by[how]]
    if by["stopped"]:
        everyone = len(by["stopped"]) == len(known)
        return say(known, "as a whole", "note") if everyone else say(by["stopped"], "stopped", confidence="proven")
    first = _first(ends, by)
    if first and len(first) < len(known):
        return _of_some(job, ends, by, first, found, say)
    if first and ends[first[0]].how == "raised":
        return say(known, "on all ranks", "note", "proven")
    if by["lost peer"]:
        return _of_complaints(job, ends, by, found, say)
    if by["running"]:
        return _of_waiting(job, ends, by, found, say)
    if by["silent"] or by["terminated"]:
        return _as_a_whole(job, ends, known, found, say)
    return None


def _first(ends: dict[int, Ending], by: dict[How, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the ranks that ended by themselves before the others: by an exception, or silent well before it."""
    raised, silent = by["raised"], by["silent"]
    raised_at = min((ends[r].at_s for r in raised), default=float("inf"))
    silent_at = min((ends[r].at_s for r in silent), default=float("inf"))
    if raised and silent_at > raised_at - SKEW_S:
        start = ends[min(raised, key=lambda r: ends[r].at_s)]
        return tuple(r for r in raised if _is_same_failure(ends[r], start))
    return tuple(r for r in silent if ends[r].at_s <= silent_at + SKEW_S)


def _is_same_failure(end: Ending, start: Ending) -> bool:
    a, b = end.seen, start.seen
    return a is not None and b is not None and a.exit is not None and b.exit is not None and (
        (a.exit.type, a.step) == (b.exit.type, b.step)
    )  # fmt: skip


def _of_some(
    job: Job,
    ends: dict[int, Ending],
    by: dict[How, tuple[int, ...]],
    first: tuple[int, ...],
    found: list[Wait],
    say: _Say,
) -> Loss | None:
    if ends[first[0]].how == "raised":
        return say(first, "raised", confidence="proven")
    others = [r for how in ("lost peer", "torn", "raised", "terminated", "running") for r in by[how]]
    its = set(first)
    later = [ends[r] for r in by["silent"] if r not in its]
    if not others and not _are_behind(job, ends, first, by) and not _have_waited(later, ends[first[0]]):
        if len(first) + len(later) == len(ends) - len(by["unknown"]):
            return _as_a_whole(job, ends, [*first, *(end.rank for end in later)], found, say)
        return None  # all others came to their end: this one did not say so, as after os._exit
    missing = {r for wait in found for r in wait.missing if r in its}
    first = tuple(missing) if missing and len(first) > 1 else first
    is_gone = all(job.liveness.get(r) == "gone" for r in first)
    return say(first, "silent", confidence="proven" if is_gone and others else "likely")


def _are_behind(job: Job, ends: dict[int, Ending], first: tuple[int, ...], by: dict[How, tuple[int, ...]]) -> bool:
    """Return whether ranks that fell silent had not come as far as those that ended."""
    if job.run.status == "finished" and not job.run.exit_code:
        return False
    steps = [seen.step for r in by["left"] if (seen := ends[r].seen) is not None]
    mine = [seen.step for r in first if (seen := ends[r].seen) is not None]
    return bool(steps) and max(mine, default=0) < min(steps)


def _have_waited(later: list[Ending], first: Ending) -> bool:
    """Return whether ranks that were killed later had not moved since the first fell silent: they needed it."""
    return bool(later) and all(
        end.seen is not None and end.at_s - first.at_s > LATER_S and end.at_s - _still_s(end.seen) < first.at_s + SKEW_S
        for end in later
    )


def _still_s(w: Whereabouts) -> float:
    return (w.last_mono_ns - w.changed_mono_ns) / 1e9


def _of_complaints(
    job: Job, ends: dict[int, Ending], by: dict[How, tuple[int, ...]], found: list[Wait], say: _Say
) -> Loss | None:
    """Judge where ranks lost their connection or patience, and nobody has fallen silent or failed by itself."""
    when = min(ends[r].at_s for r in by["lost peer"])
    early = [r for r in by["left"] if ends[r].at_s < when]
    shot = [r for r in by["terminated"] if ends[r].at_s < when]
    missing = [r for wait in found[:1] for r in wait.missing if r in ends]
    if by["running"]:
        late = set(missing)
        held = [r for r in by["running"] if r in late or (not late and not _waits(ends[r]))]
        return say(held, "stuck") if held else None
    if shot:
        return say(shot, "terminated", confidence="proven")
    if by["absent"] and not early:
        return say(by["absent"], "absent")
    if early:
        is_wanted = job.run.config.get("on_finding") == "stop" or job.run.config.get("stop_after_batch") is not None
        return None if is_wanted else say(early, "left")
    slow = [r for r in missing if ends[r].how == "lost peer"]
    if slow and len(slow) < len(by["lost peer"]):
        return say(slow, "stuck")
    return say(by["lost peer"], "on all ranks", "note")


def _waits(end: Ending) -> bool:
    return end.seen is not None and is_waiting(end.seen)


def _of_waiting(
    job: Job, ends: dict[int, Ending], by: dict[How, tuple[int, ...]], found: list[Wait], say: _Say
) -> Loss | None:
    """Judge a job that goes on, or hangs."""
    missing = [r for wait in found[:1] for r in wait.missing if r in ends and ends[r].how in ("running", "absent")]
    if not missing:
        return None
    told = say(missing, "absent" if ends[missing[0]].how == "absent" else "stuck", "note", "possible")
    dumb = [r for r in missing if _is_dumb(job, ends[r])]
    if dumb:
        return say(dumb, "stuck")
    if told.waited_s < max(WORTH_SAYING_S, SLOW_STEPS * job.step_s):
        return None
    return replace(told, severity="warning") if told.waited_s > STUCK_S else told


def _is_dumb(job: Job, end: Ending) -> bool:
    """Return whether the process is there but gives no sign of life: it holds Python's lock, or waits for a disk."""
    return end.how == "running" and end.seen is not None and job.now_ns - end.seen.last_ns > WORTH_SAYING_S * 1e9


def _as_a_whole(job: Job, ends: dict[int, Ending], known: list[int], found: list[Wait], say: _Say) -> Loss | None:
    """Judge where all that was left was killed at once. A long wait before tells who was missing."""
    if job.run.status == "finished" and not job.run.exit_code:
        return None
    whole = say(known, "as a whole", "note")
    if found and whole.waited_s > max(STUCK_S, SLOW_STEPS * job.step_s):
        missing = [r for r in found[0].missing if r in ends and ends[r].how in ("silent", "terminated")]
        if missing:
            return say(missing, "stuck")
    return whole


def _waited_s(job: Job, ends: dict[int, Ending], wait: Wait) -> float:
    """Return how many seconds the last of those who wait has waited: until its end, or until now."""
    there = [end for r in wait.waiting if (end := ends.get(r)) is not None]
    return min((_waited(job, end) for end in there), default=0.0)


def _waited(job: Job, end: Ending) -> float:
    w, call = end.seen, end.seen.call if end.seen is not None else None
    if w is None:
        return 0.0
    if call is not None and call.state == "failed":
        return (call.left_ns - call.entered_ns) / 1e9
    since = call.entered_ns if call is not None and call.state == "inside" else w.changed_mono_ns
    until_now = max(0, job.now_ns - w.last_ns) if end.how == "running" else 0
    return (until_now + w.last_mono_ns - since) / 1e9
