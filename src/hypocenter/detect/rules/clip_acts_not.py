"""A clip of the gradients does not act on what the optimizer uses, or on a part of it alone.

What it means
    In vain: gradients are clipped after the optimizer has used them, or before backward has made them, or the clip is
    given nothing that has a gradient (a generator of parameters that is used up), or, in MindSpore, what it gives back
    is thrown away. Training runs as if nobody clipped.
    In part: the clip is given other parameters than the optimizer, for instance those of the head alone; its norm is
    not that of the step, and a large gradient elsewhere goes through.

How it is decided
    At the first four updates of an optimizer that see a clip to a finite norm, and at four after its clips are made
    otherwise than before: whether any of its gradients was clipped
    between the first backward of the step and the update, and whether all were, by all clips together. Too early: at
    each of them a line that had called backward before added more to gradients that a clip had written to, or the
    program added gradients of other ranks to them, and a clip acted at least once.

What to do
    Call `clip_grad_norm_` after the last `backward` and before `optimizer.step`, on the parameters of the optimizer.

When it is wrong
    Who clips a part on purpose, or each of four parts or more by itself: it is a note, unless clips were given all
    before.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import CLIPPED_EACH, CLIPPED_EARLY, CLIPPED_IN_PART, CLIPPED_IN_VAIN, THROWN_AWAY, WHOLE
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy


@rule("HC238", "config", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once for each optimizer."""
    for row in window.by_phase["optimizer"]:
        if row.port == CLIPPED_IN_VAIN:
            title = "clips have no effect on the gradients that are used"
            why = (
                _IN_VAIN.get(row.module, _IN_VAIN[""]),
                f"none of the {row.call} gradients that these updates used was clipped",
            )
            yield _finding(window, row, title, why)
        elif row.port == CLIPPED_EARLY:
            title = f"gradients are clipped before those of all {row.module} are there"
            more = "backward added more" if row.module == "micro-batches" else "the program added those of other ranks"
            why = (f"at each of the first updates that saw a clip, {more} to gradients that were clipped",)
            yield _finding(window, row, title, why)
        elif row.port == CLIPPED_EACH:
            n = round(row.summary.sum)
            why = (f"{n} clips at an update, no two of which have a parameter in common",)
            yield _finding(window, row, f"gradients are clipped in {n} parts, each by a factor of its own", why)
        elif row.port == CLIPPED_IN_PART:
            n = round(row.summary.sum)
            title = f"{n} of {row.call} gradients are not clipped"
            why = (f"{row.site} is used by the optimizer, and no clip was given it; others were clipped",)
            yield _finding(window, row, title, why)


_IN_VAIN = {
    "": "at each of the first updates that saw a clip, it came after the update before and before any backward",
    "nothing": "clips were given no gradient: a generator of parameters that is used up, or another model?",
    THROWN_AWAY: "at each of the first updates that saw a clip, the optimizer was given what the clip had been given, "
    "not what it gave back",
}
_THEN = {
    CLIPPED_EARLY: "the norm that is clipped is not that of the step, and what comes later weighs more",
    CLIPPED_EACH: "the direction of the step is another one",
}


def _finding(window: Window, row: Reading, title: str, why: tuple[str, ...]) -> Finding:
    is_part = row.port == CLIPPED_IN_PART
    is_note = row.port == CLIPPED_EACH or (is_part and row.module != WHOLE)
    since = int(row.names[0]) if row.names else window.step
    why = (*why, f"at step {since} and the updates after it; clips before were made otherwise") if row.names else why
    return Finding(
        code="HC238", kind="config", severity="note" if is_note else "warning", title=title, step=since,
        rank=window.rank, phase="optimizer", site=row.site if is_part else "", param=row.site if is_part else None,
        cause="program-error", confidence="proven", why=why,
        then=(_THEN.get(row.port, "a large gradient goes through as it is"),),
        remedy=Remedy(
            action="clip-between", text="clip the optimizer's parameters between the last backward and its step"
        ),
    )  # fmt: skip
