"""How each rank ended, and whether it has: what follows from its whereabouts and from its process, one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from hypocenter.nouns import Place, Run
from hypocenter.record.liveness import Liveness
from hypocenter.record.whereabouts import Whereabouts

FRESH_S = 15.0  # a sign of life no older than this, from a process that cannot be looked at: it lives
SKEW_S = 2.0  # signs of life come twice a second, and clocks of machines differ: closer than this is no order
How = Literal["left", "torn", "raised", "lost peer", "terminated", "silent", "stopped", "running", "absent", "unknown"]
"""left        its program came to its end
torn        its program ended in the midst of a step, as when something catches its exception
raised      an exception of its own
lost peer   an exception that says that another rank is gone or does not answer
terminated  by SIGTERM, as a launcher or scheduler ends what is left of a job
silent      no word: SIGKILL, a crash outside Python, or os._exit
stopped     its process is there but stopped by a signal
running     it lives
absent      it has left nothing at all
unknown     it has left rows, but no whereabouts that can be trusted
"""
_IN_A_STEP = ("forward", "backward", "check", "update")
_OF_A_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted|lost)|broken pipe|by peer|timed? ?out|timeout|nccl|gloo|hccl|rccl"
    r"|process ?group|Dist(Backend|Network|Store)Error|socket|TCPStore|remote (process|worker|rank)|watchdog",
    re.IGNORECASE,
)
_NEVER_OF_A_PEER = (  # an error of the program, whatever its words
    "AssertionError", "AttributeError", "FileNotFoundError", "ImportError", "IndexError", "KeyError",
    "ModuleNotFoundError", "NameError", "NotImplementedError", "TypeError", "ValueError", "ZeroDivisionError",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What has become of one rank, and when (seconds on a clock that all ranks of the job share)."""

    rank: int
    how: How
    at_s: float = 0.0
    seen: Whereabouts | None = None


def _endings(job: Job) -> dict[int, Ending]:
    clock = clock_of(job)
    found = {rank: _ending(job, rank, clock) for rank in range(job.world_size)}
    if any(end.how == "terminated" for end in found.values()):  # a program's own handler leaves no stack of ours
        own = [end for end in found.values() if end.how == "silent" and end.seen is not None and end.seen.own_sigterm]
        found |= {end.rank: replace(end, how="terminated") for end in own}
    return found


def died(job: Job) -> list[Whereabouts]:
    """Return where the ranks were that died by themselves: of an exception of their own, or a crash outside Python.

    In a program of one rank every exception is its own.
    """
    alone = job.world_size == 1
    ends = job.ends
    return [
        seen for end in ends.values()
        if (seen := end.seen) is not None and seen.death and (alone or end.how != "lost peer")
    ]  # fmt: skip


def clock_of(job: Job) -> Callable[[Whereabouts], float]:
    """Return a function for the time of a rank's end or last sign of life, in seconds that all ranks share."""
    if shares_clock(job):
        return lambda w: (w.exit.mono_ns if _is_over(w) and w.exit else w.last_mono_ns) / 1e9
    return lambda w: (w.exit.ns if _is_over(w) and w.exit else w.last_ns) / 1e9


def shares_clock(job: Job) -> bool:
    """Return whether all ranks ran on one machine, since one start of it."""
    return len({w.boot for w in job.whereabouts.values()}) == 1 and all(w.boot for w in job.whereabouts.values())


def _is_over(w: Whereabouts) -> bool:
    return w.has_raised or w.has_ended


def _ending(job: Job, rank: int, clock: Callable[[Whereabouts], float]) -> Ending:
    seen = job.whereabouts.get(rank)
    if seen is None:
        return Ending(rank=rank, how="unknown" if rank in job.ranks else "absent")
    return Ending(rank=rank, how=_how(job, seen), at_s=clock(seen), seen=seen)


def _how(job: Job, w: Whereabouts) -> How:
    if w.has_raised and w.exit is not None:
        is_own = w.exit.type in _NEVER_OF_A_PEER or not _OF_A_PEER.search(f"{w.exit.type}: {w.exit.text}")
        return "raised" if is_own else "lost peer"
    if w.has_ended:
        return "torn" if w.phase in _IN_A_STEP or (w.call is not None and w.call.state == "failed") else "left"
    lives = job.liveness.get(w.rank, "unknown")
    if lives in ("running", "stopped"):
        return "stopped" if lives == "stopped" else "running" if w.phase != "off" else "unknown"
    if w.phase == "off":
        return "unknown"
    if w.stack and not w.fatal:
        return "terminated"
    if lives == "unknown" and job.now_ns - w.last_ns < FRESH_S * 1e9:
        return "running"
    return "silent"


@dataclass(frozen=True, kw_only=True)  # without slots: what follows from it is kept
class Job:
    """A job of several ranks, over or not.

    `whereabouts` are of one attempt, the latest unless `is_latest` is false. A rank that is missing there left none.
    """

    run: Run
    attempt: int = 0  # of an elastic job
    is_latest: bool = True
    now_ns: int  # Unix time of looking
    ranks: tuple[int, ...] = ()  # that left a folder
    whereabouts: Mapping[int, Whereabouts] = field(default_factory=dict)
    liveness: Mapping[int, Liveness] = field(default_factory=dict)
    last_steps: Mapping[int, int] = field(default_factory=dict)  # by rank: the last step it completed and recorded
    first_steps: Mapping[int, int] = field(default_factory=dict)  # by rank: the first one
    step_s: float = 0.0  # median time of a step
    places: Mapping[int, Place] = field(default_factory=dict)
    problems: tuple[str, ...] = ()  # of the recording, as the reader says them

    @property
    def world_size(self) -> int:
        """The number of ranks of the latest attempt."""
        known = [w.world_size for w in self.whereabouts.values()]
        return max(known) if known else self.run.world_size

    @cached_property
    def ends(self) -> dict[int, Ending]:
        """How every rank ended."""
        return _endings(self)
