"""The recording of a rank is missing, damaged or stops early, while the rank went on.

What it means
    What is said about this run rests on the other ranks' recordings and on what could be read of this one. A full disk,
    a killed writer or a damaged file is no fault of the training.

How it is decided
    A rank's whereabouts say which step it was in last and whether it had to give up recording; its step records say
    how far the recording goes. More than one step between them is a recording that stops early. What the reader of the
    files found wrong is told as it says it.

What to do
    Look at the disk of that rank's machine: how full it is, and whether it is still mounted. Copy what is there.

When it is wrong
    It is a fact.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from hypocenter.detect.endings import Job
from hypocenter.detect.group_engine import end_rule
from hypocenter.nouns import Finding

_OF_RANK = re.compile(r"\brank[- ]0*(\d+)\b.*(cannot be read|damaged|vanished|nothing (that|readable))")


@end_rule("HC322", "environment", severity="warning")
def check(job: Job) -> Iterator[Finding]:
    """Report the ranks whose recordings are not whole."""
    if not job.is_latest:
        return
    said: dict[int, list[str]] = defaultdict(list)
    for problem in job.problems:
        match = _OF_RANK.search(problem)
        if match:
            said[int(match[1])].append(problem)
    for rank, w in job.whereabouts.items():
        last = job.last_steps.get(rank)
        if w.not_recording:
            until = "at once" if last is None else f"after step {last}"
            said[rank].insert(0, f"rank {rank} had to stop recording {until}; it was last seen in step {w.step}")
    for rank, lines in sorted(said.items()):
        w = job.whereabouts.get(rank)
        is_short = w is not None and w.not_recording
        yield Finding(
            code="HC322",
            kind="environment",
            severity="warning" if is_short else "note",
            title=f"the recording of rank {rank} {'stops early' if is_short else 'is damaged'}",
            step=job.last_steps.get(rank, -1) + 1,
            rank=rank,
            cause="unknown",
            why=(*lines, *(line for line in job.run.warnings if is_short and f"rank-{rank:05d}" in line)),
            confidence="proven",
        )
