"""The program died: of an exception that nobody caught, or of a crash outside Python.

What it means
    The run did not come to its end, and what it would have done next is not known: nothing that was recorded may be
    called healthy. Step, phase and line are where it stood.

How it is decided
    A process that trains keeps a small file of where it is, and writes the exception there that ends it; a crash
    outside Python (a segmentation fault) leaves its Python stack there. The call that raised is then made again: where
    whole numbers among its arguments are to blame, each is tried by itself, so that the bad index, its place in the
    batch and the length of the table are what was seen and not what a message says. A process that the user ended
    (Ctrl-C, SIGTERM, `sys.exit`) has not died in this sense: of it the diagnosis says that it cannot tell.

    A device that gives no more results (an assert in a kernel, an illegal access, an aborted collective) says so to
    whoever asks it next, long after the kernel was called. Where that is Hypocenter, it keeps the step and the words,
    asks no more, and leaves it to the program to meet the error by itself: "a device error was first seen at step 12".

What to do
    Read the line that is named. Of an index out of range: compare the tokenizer's vocabulary with the size of the
    embedding, the labels with the number of classes, the positions with the longest sequence. Of memory: a smaller
    batch, gradient accumulation, activation checkpointing. Of a device: run it again with CUDA_LAUNCH_BLOCKING=1
    (ASCEND_LAUNCH_BLOCKING=1): the line that is named is then the one whose kernel failed. A device-side assert is
    nearly always an index out of range; an illegal access a kernel's fault, or the hardware's.

When it is wrong
    A program may be meant to end by an exception. Where one process trains after another in one recording, the last
    one's end is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from hypocenter.detect.endings import Job, died
from hypocenter.detect.group_engine import end_rule
from hypocenter.detect.loss import loss_of
from hypocenter.detect.rank_words import IN_WORDS, PHASES, line_of, source_of
from hypocenter.nouns import Finding
from hypocenter.record.whereabouts import Whereabouts


@end_rule("HC324", "crash", severity="error", alone=True)
def check(job: Job) -> Iterator[Finding]:
    """Report what the program died of, if no rank is to be blamed before the others."""
    dead = died(job)
    if not dead or not job.is_latest:
        return
    loss = loss_of(job)
    if loss is not None and loss.severity == "error":
        return  # one rank was first: HC321 names it
    first = min(dead, key=lambda w: (w.last_ns, w.rank))
    what, many = first.death, job.world_size > 1
    yield Finding(
        code="HC324",
        kind="crash",
        severity="error",
        title=f"the program {what}{' on all ranks' if many and len(dead) == job.world_size else ''}",
        step=first.step,
        microbatch=first.microbatch,
        rank=first.rank,
        phase=PHASES.get(first.phase),
        site=first.site or None,
        source=source_of(first),
        cause="program-error" if first.has_raised else "unknown",
        why=tuple(_why(job, first)),
        confidence="proven",
        count=len(dead),
    )


def _why(job: Job, seen: Whereabouts) -> Iterator[str]:
    if seen.exit is not None and seen.exit.type:
        yield f"{seen.exit.type}: {seen.exit.text}"
    line = f" ({PurePath(line_of(seen)).name})" if line_of(seen) else ""
    site = f", at {seen.site}" if seen.site else ""
    yield f"it was in {IN_WORDS[seen.phase]} of step {seen.step}{site}{line}"
    last = job.last_steps.get(seen.rank)
    yield "no step was completed" if last is None else f"the last step that was completed is {last}"
