"""Whether a run may be called healthy: only a whole recording of a program that ended well, with enough seen, may.

Everything short of that is a doubt, said in words. None is an accusation.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from hypocenter.detect.endings import Ending, Job
from hypocenter.detect.rank_words import IN_WORDS, line_of, ranks_text, seconds_text
from hypocenter.nouns import Run
from hypocenter.record.whereabouts import Whereabouts

_GAVE_UP = "recording to "  # how the warning begins of a writer that had to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What of the run was looked at.

    Attributes:
        at: in the field's words: losses, gradients, outputs, parameters.
        n_trained: parameters that got gradients; 0: not known.
        n_still: of these, how many were at the end what they had been at the start; 0 also where it is not known.
        lr_was_zero: the learning rate was 0 at every recorded step.
    """

    at: tuple[str, ...] = ()
    n_trained: int = 0
    n_still: int = 0
    lr_was_zero: bool = False

    @property
    def is_enough(self) -> bool:
        """Whether more than the loss was looked at, which may stay finite long after the weights are not."""
        return bool(set(self.at) - {"losses"})


def end_doubts(job: Job) -> tuple[str, ...]:
    """Return the reasons why the recording of this job is not known to be whole."""
    return tuple(_of_the_end(job))


def doubts(job: Job, looked: Looked) -> tuple[str, ...]:
    """Return the reasons why this run cannot be called healthy; none if it can.

    Args:
        job: its latest attempt.
        looked: what was looked at in it.
    """
    ended = end_doubts(job)
    found = (*ended, *_of_what_was_seen(looked))
    if not found or not job.last_steps:
        return ended
    first, last = min(job.first_steps.values(), default=0), max(job.last_steps.values(), default=0)
    steps = f"step {last}" if first == last else f"steps {first} to {last}"
    return (*found, f"nothing wrong was found in {steps}; looked at: {', '.join(looked.at) or 'nothing'}")


def _of_what_was_seen(looked: Looked) -> Iterator[str]:
    if not looked.is_enough:
        yield "nothing but the loss was seen" if looked.at else "no value was seen"
    if 2 * looked.n_still > looked.n_trained:
        why = ": the learning rate was 0 at every step" if looked.lr_was_zero else ""
        yield f"{looked.n_still:,} of {looked.n_trained:,} parameters that got gradients did not move in the run{why}"


def _of_the_end(job: Job) -> Iterator[str]:
    run = job.run
    if run.imported is not None:
        return
    ends = job.ends
    running = [end for end in ends.values() if end.how in ("running", "stopped")]
    if running:
        yield _still_running(job, running)
    else:
        yield from _over(job, ends)
    yield from _not_recorded(job)
    missing = sorted(set(range(job.world_size)) - set(job.ranks))
    if missing:
        yield f"{ranks_text(missing)} left no recording"


def _still_running(job: Job, running: list[Ending]) -> str:
    seen = [end.seen for end in running if end.seen is not None]
    newest = max(seen, key=lambda w: w.changed_ns)
    age = seconds_text(max(0.0, (job.now_ns - newest.changed_ns) / 1e9))
    last = job.last_steps.get(newest.rank)
    done = "no step is complete yet" if last is None else f"last step {last}"
    state = "is stopped by a signal" if running[0].how == "stopped" else "is still running"
    return f"it {state}: {done}, {age} ago, in {_place(newest)}"


def _over(job: Job, ends: Mapping[int, Ending]) -> Iterator[str]:
    run = job.run
    stopped = next((end.seen for end in ends.values() if end.seen is not None and end.seen.was_interrupted), None)
    silent = [end for end in ends.values() if end.how in ("silent", "terminated") and end.seen is not None]
    where = f" in {_place(silent[0].seen)}" if silent and silent[0].seen is not None else ""
    if stopped is not None and stopped.exit is not None and stopped.exit.type == "KeyboardInterrupt":
        yield f"the program was interrupted (KeyboardInterrupt) in {_place(stopped)}"
    elif run.status == "killed":
        yield f"the program was killed by {_signal(run)}{where}"
    elif run.exit_code:
        yield f"the program ended with exit code {run.exit_code}{where}"
    elif silent:
        how = "was ended by SIGTERM" if silent[0].how == "terminated" else "ended without a word (SIGKILL, os._exit)"
        yield f"{_who(job, silent)} {how}{where}: what came after the last step was not looked at"
    elif run.status == "running" and not job.whereabouts:
        yield "the recording was not closed: the program was killed, or still runs elsewhere"


def _not_recorded(job: Job) -> Iterator[str]:
    told = False
    for rank, w in sorted(job.whereabouts.items()):
        last = job.last_steps.get(rank, -1)
        if w.not_recording or w.step > last + 1:
            told = True
            until = "before the first step" if last < 0 else f"after step {last}"
            yield f"{'' if job.world_size == 1 else f'rank {rank}: '}the recording stopped {until}, the program went on to step {w.step}"  # noqa: E501
    if not told:
        yield from (line for line in job.run.warnings if line.startswith(_GAVE_UP) and " stopped" in line)


def _who(job: Job, ends: list[Ending]) -> str:
    return "the program" if job.world_size == 1 else ranks_text([end.rank for end in ends])


def _place(seen: Whereabouts) -> str:
    site = f", at {seen.site}" if seen.site else ""
    line = line_of(seen)
    where = f"{IN_WORDS[seen.phase]} of step {seen.step}{site}" + (f" ({PurePath(line).name})" if line else "")
    return f"{where}, or soon after" if seen.seldom else where


def _signal(run: Run) -> str:
    number = (run.exit_code or 0) - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a signal"
