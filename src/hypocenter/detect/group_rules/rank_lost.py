"""A rank died, hangs or never came, and the others waited for it.

What it means
    Every other rank sooner or later waits for the one that is missing, inside a collective; what they say then
    ("connection closed by peer", a timeout after minutes, a SIGTERM from the launcher) names the messenger. This
    names the rank that stopped first, where it was last, and who waited for it where.

How it is decided
    Each rank keeps a small file true while it runs (`whereabouts`): step, phase, last collective of each group,
    twice a second a sign of life, an exception that nobody caught, the Python stack when SIGTERM comes. It outlives
    a SIGKILL. An exception of the rank's own (proven), or falling silent while others live on (likely; proven if the
    process is gone), comes before lost connections, timeouts and SIGTERM, which follow. A rank that ended its
    program while the others still communicated is named as having left. Who waits for whom: ranks inside the n-th
    collective of a group, and members of the group that have entered fewer. Collectives that DDP makes in C++ are not
    seen; then ranks in the backward of a step, and those short of it, are compared.

What to do
    Look at the missing rank first: its exception is in the finding. Killed without a word: the kernel's log for the
    out-of-memory killer, the scheduler's for a limit; a crash outside Python: run it with `python -X faulthandler`.
    Stuck: the line of its own code is told once it has not moved for a second; `hypocenter check` on the running
    job says for how long. Left early: give all ranks equally many batches, or use `Join`.

When it is wrong
    Clocks of several machines that differ by more than two seconds can turn the order of two ranks round. Silence of
    all ranks at once, an exception on all of them, and a rank that lives while others wait for less than a minute
    (it may save a checkpoint) are only notes. A program that catches an exception and ends by `os._exit` is silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from hypocenter.detect.endings import Ending, Job
from hypocenter.detect.group_engine import end_rule
from hypocenter.detect.loss import Loss, loss_of
from hypocenter.detect.rank_words import IN_WORDS, PHASES, group_text, own_frames, ranks_text, seconds_text, source_of
from hypocenter.detect.waiting import BACKWARD, Wait, is_waiting
from hypocenter.nouns import Finding
from hypocenter.record.whereabouts import Whereabouts

_CUT = re.compile(r"closed|reset|by peer|broken pipe", re.IGNORECASE)
_TIMEOUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
_SAID_AT_MOST = 4  # sentences of waits, and of other ranks' ends


@end_rule("HC321", "environment", severity="error")
def check(job: Job) -> Iterator[Finding]:
    """Report the rank that the others lost."""
    loss = loss_of(job)
    if loss is None or not loss.ranks or (loss.severity == "note" and not job.is_latest):
        return
    first = loss.ends[loss.ranks[0]]
    seen = first.seen
    is_whole = loss.how in ("as a whole", "on all ranks")
    inside = seen is not None and seen.is_inside and seen.call is not None
    yield Finding(
        code="HC321",
        kind="environment",
        severity="warning" if loss.severity == "error" and not job.is_latest else loss.severity,
        title=_title(job, loss) if job.is_latest else f"{_title(job, loss)}; the job was started anew",
        step=_step(job, loss),
        microbatch=seen.microbatch if seen is not None else 0,
        rank=first.rank,
        phase=None if seen is None or is_whole else "comm" if inside else PHASES.get(seen.phase),
        site=(seen.site or None) if seen is not None and not is_whole else None,
        op=seen.call.op if inside and seen is not None and seen.call is not None and not is_whole else None,
        source=source_of(seen) if seen is not None and not is_whole else None,
        cause="unknown" if loss.severity == "note" else "rank-lost",
        why=tuple(_why(job, loss)),
        then=tuple(_then(loss)),
        confidence=loss.confidence,
        count=len(loss.ranks),
    )


def _step(job: Job, loss: Loss) -> int:
    steps = [seen.step for r in loss.ranks if (seen := loss.ends[r].seen) is not None]
    return min(steps) if steps else 1 + max(job.last_steps.values(), default=-1)


def _title(job: Job, loss: Loss) -> str:
    who, many = ranks_text(loss.ranks), len(loss.ranks) > 1
    step = f"step {_step(job, loss)}"
    seen = loss.ends[loss.ranks[0]].seen
    kind = seen.exit.type if seen is not None and seen.exit is not None else ""
    if loss.how == "as a whole":
        stopped = all(loss.ends[r].how == "stopped" for r in loss.ranks)
        return f"the job was {'suspended' if stopped else 'killed'} as a whole at {step}"
    if loss.how == "on all ranks" and loss.ends[loss.ranks[0]].how == "lost peer":
        return f"{who} lost {'their' if many else 'its'} connection at {step}, and no rank failed by itself"
    if loss.how == "on all ranks":
        return f"the program ended by {kind} on all ranks at {step}"
    waiting = loss.waits[0].waiting if loss.waits else ()
    return {
        "raised": f"{who} died of {kind} at {step}",
        "silent": f"{who} {'were' if many else 'was'} killed or crashed at {step}"
        if _was_cut_off(loss)
        else f"{who} fell silent at {step}",
        "terminated": f"{who} {'were' if many else 'was'} ended by SIGTERM at {step}, before the others",
        "stopped": f"{who} {'are' if many else 'is'} stopped by a signal at {step}",
        "left": f"{who} left the job at {step} while others went on",
        "absent": f"{who} never came",
        "stuck": f"{who} {'do' if many else 'does'} not go on at {step}"
        + (f": {ranks_text(waiting)} wait{'' if len(waiting) > 1 else 's'}" if waiting else ""),
    }[loss.how]


def _why(job: Job, loss: Loss) -> Iterator[str]:
    is_whole = loss.how in ("as a whole", "on all ranks")
    for rank in loss.ranks[:1] if is_whole else loss.ranks[:_SAID_AT_MOST]:
        seen = loss.ends[rank].seen
        if seen is None:
            yield f"rank {rank} has left no file of where it was"
            continue
        if seen.exit is not None and seen.exit.type:
            where = "a thread of " if seen.exit.in_thread else ""
            yield f"{where}rank {rank}: {seen.exit.type}: {seen.exit.text}"
        if not is_whole:
            yield _last_seen(job, loss, seen)
            if seen.is_inside and (beside := _beside(loss, seen)):
                yield f"{ranks_text(beside)} {'were' if len(beside) > 1 else 'was'} inside the same one"
            elif seen.call is not None and not seen.is_inside:
                yield (
                    f"its last collective was {seen.call.op} #{seen.call.seq} of "
                    f"{group_text(seen.call.ranks, job.places, job.world_size)}, which it {_done(seen)}"
                )
        if seen.stack:
            yield from (f"at SIGTERM rank {rank} was in {frame}" for frame in own_frames(seen.stack)[:1])
    if loss.how == "silent":
        stop = "" if _was_cut_off(loss) else "a stop (SIGSTOP, a frozen machine), "
        yield f"no exception, no SIGTERM: {stop}SIGKILL (the out-of-memory killer?), a crash outside Python, os._exit"
    if loss.how != "on all ranks":
        yield from (_waiting(job, loss, wait) for wait in loss.waits[:_SAID_AT_MOST])


def _was_cut_off(loss: Loss) -> bool:
    """Return whether the others' connections were closed: the process is gone, not only quiet."""
    ends = (end.seen.exit for end in loss.ends.values() if end.how == "lost peer" and end.seen is not None)
    said = [end.text for end in ends if end is not None]  # who was patient is told, whom it then cut off is not
    return any(_CUT.search(text) for text in said) and not any(_TIMEOUT.search(text) for text in said)


def _last_seen(job: Job, loss: Loss, seen: Whereabouts) -> str:
    place = f", at {seen.site}" if seen.site else ""
    line = f" ({PurePath(seen.line).name})" if seen.line else ""
    inside = f", inside {seen.call.op} #{seen.call.seq}" if seen.is_inside and seen.call is not None else ""
    end = loss.ends[seen.rank]
    lost = set(loss.ranks)
    others = [e.at_s for e in loss.ends.values() if e.seen is not None and e.rank not in lost]
    before = min(others) - end.at_s if others else 0.0
    if loss.is_live and end.how != "raised":
        age = max(0.0, (job.now_ns - seen.changed_ns) / 1e9)
        when = f", {seconds_text(age)} ago"
    else:
        when = f", {seconds_text(before)} before the others ended" if before > 0.001 else ""
    return f"rank {seen.rank} was last seen in {IN_WORDS[seen.phase]} of step {seen.step}{inside}{place}{line}{when}"


def _beside(loss: Loss, seen: Whereabouts) -> list[int]:
    """Return the ranks that are, or were when they gave up, in the collective that a lost rank is in."""
    lost = set(loss.ranks)
    there = [e.seen for e in loss.ends.values() if e.seen is not None and e.rank not in lost and is_waiting(e.seen)]
    mine = seen.call
    return [] if mine is None else [
        w.rank for w in there
        if w.call is not None and (w.call.group, w.call.members, w.call.seq) == (mine.group, mine.members, mine.seq)
    ]  # fmt: skip


def _done(seen: Whereabouts) -> str:
    return "was thrown out of" if seen.call is not None and seen.call.state == "failed" else "left"


def _waiting(job: Job, loss: Loss, wait: Wait) -> str:
    waiting, missing = ranks_text(wait.waiting), ranks_text(wait.missing)
    is_over = not any(loss.ends[r].how in ("running", "stopped") for r in wait.waiting if r in loss.ends)
    verb = "waited" if is_over else "wait" if len(wait.waiting) > 1 else "waits"
    steps = {seen.step for r in wait.waiting if r in loss.ends and (seen := loss.ends[r].seen) is not None}
    step = f" at step {min(steps)}" if steps else ""
    lines = [
        seen.line for r in wait.waiting if r in loss.ends and (seen := loss.ends[r].seen) is not None and seen.line
    ]
    step += f" ({PurePath(lines[0]).name})" if lines else ""
    of = group_text(wait.group, job.places, job.world_size)
    long = f" for {seconds_text(loss.waited_s)}" if wait is loss.waits[0] and loss.waited_s > 0.1 else ""
    if wait.op == BACKWARD:
        return f"{waiting} {verb}{long} in the backward{step} for {missing}, which had not come so far"
    if wait.op in ("send", "recv"):
        return f"{waiting} {verb}{long} in {wait.op} #{wait.seq}{step} for {missing}"
    return f"{waiting} {verb}{long} in {wait.op} #{wait.seq} of {of}{step} for {missing}, which never entered it"


def _then(loss: Loss) -> Iterator[str]:
    if loss.how in ("as a whole", "on all ranks"):
        return
    start, lost = loss.ends[loss.ranks[0]], set(loss.ranks)
    followed: dict[str, list[Ending]] = {}
    for end in loss.ends.values():
        if end.rank in lost or end.how not in ("raised", "lost peer", "terminated"):
            continue
        kind = end.seen.exit.type if end.seen is not None and end.seen.exit is not None else "SIGTERM"
        followed.setdefault(kind, []).append(end)
    for kind, ends in list(followed.items())[:_SAID_AT_MOST]:
        first = min(ends, key=lambda end: end.at_s)
        text = first.seen.exit.text[:160] if first.seen is not None and first.seen.exit is not None else ""
        later = first.at_s - start.at_s
        when = f" {seconds_text(later)} later" if later > 0.001 and start.seen is not None else ""
        yield f"{ranks_text([end.rank for end in ends])} ended by {kind}{when}{f': {text}' if text else ''}"
