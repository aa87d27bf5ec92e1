"""Activation checkpointing computes something else the second time.

What it means
    With activation checkpointing, a part of the model runs again inside backward. It must give what it gave in forward:
    the loss belongs to the one, the gradient to the other. With `preserve_rng_state=False`, or random numbers drawn
    from a generator that nobody rewinds, dropout draws another mask, and the gradient is that of another model than
    the one whose loss is shown. Training goes on and learns worse.

How it is decided
    Modules that are called inside backward are listened to, in the first micro-batch of the first eight steps after
    that was seen and then of every tenth (`replicas`). A sample of 1024 elements of what each gives in forward and in
    recompute is compared; it fires, once, when the two differ by more than 2 % of their norm, and names the first
    module in order of execution, so that what it was given agrees.

What to do
    Leave `preserve_rng_state` at True, or fork and rewind the generator that the module draws from.

When it is wrong
    Kernels that add up in no fixed order differ by less than 0.5 % in bfloat16. What has state of its own and changes
    it at each call differs without a random number being drawn; the gradient is wrong then too.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.microbatch_rows import GAP, RECOMPUTE_GAP, RECOMPUTE_IN, RECOMPUTE_ZEROS, SITE
from hypocenter.detect.update_rows import share
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

ANOTHER_MASK = 0.01  # of the elements are zero in one of the two only: a mask was drawn anew
AGREES = 1e-3  # relative: inputs are the same but for rounding


@rule("HC336", "divergence", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first step whose recompute differs."""
    zeros = _row(window, RECOMPUTE_ZEROS)
    gap = _row(window, RECOMPUTE_GAP)
    if zeros is None or gap is None or window.history.rows(SITE, RECOMPUTE_ZEROS) or gap.summary.sum <= GAP:
        return
    given = _row(window, RECOMPUTE_IN)
    is_mask = share(zeros) >= ANOTHER_MASK
    yield Finding(
        code="HC336",
        kind="divergence",
        severity="warning",
        title=f"what checkpointing recomputes of {gap.site} is not what forward computed",
        step=window.step,
        rank=window.rank,
        phase="backward",
        site=gap.site,
        port="out[0]",
        cause="rng-desync" if is_mask else "implementation-mismatch",
        limit=GAP,
        actual=gap.summary.sum,
        why=tuple(_why(gap, zeros, given, is_mask=is_mask)),
        then=("gradients belong to the recomputed values, the loss to those of forward",),
        confidence="proven" if is_mask else "likely",
        remedy=Remedy(
            action="preserve-rng-state",
            targets=(gap.site,),
            text="leave preserve_rng_state=True, or rewind the generator that this module draws from",
        ),
    )


def _row(window: Window, port: str) -> Reading | None:
    return next((r for r in window.by_phase["optimizer"] if r.port == port), None)


def _why(gap: Reading, zeros: Reading, given: Reading | None, *, is_mask: bool) -> Iterator[str]:
    yield f"{gap.site} ({gap.module}) gives values in recompute that differ by {gap.summary.sum:.0%} from forward's"
    if is_mask:
        yield f"{share(zeros):.0%} of its elements are zero in one of the two only: another mask was drawn"
    if given is not None and given.summary.sum <= AGREES:
        yield "it was given the same both times"
