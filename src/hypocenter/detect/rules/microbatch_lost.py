"""The gradient of a later micro-batch does not arrive.

What it means
    Gradients of several micro-batches are to be added up before the optimizer steps. Backward of a later one has handed
    a parameter a gradient that is not zero, and what the parameter has accumulated, in `main_grad` or `.grad`, is bit
    for bit what it was. The step is made from the first micro-batch alone: most of the batch is computed and thrown
    away. Typical is a flag that belongs to an iteration ("this gradient has been written") and is read once a
    micro-batch.

How it is decided
    In steps of several micro-batches, the first eight and then those of `replicas`, up to 32 parameters in turn are
    looked at in the second to fourth micro-batch: 1024 elements of the accumulated gradient before and after, and of
    what autograd handed over. A parameter counts as lost when every element that was to change has stayed. It fires
    when that was seen in two micro-batches, of one step or of several.

What to do
    Add every micro-batch's gradient to `main_grad`; reset what marks a gradient as written before each micro-batch.

When it is wrong
    A program that adds gradients up somewhere else, and leaves `.grad` or `main_grad` as it was on purpose. Gradients
    that are zero (a frozen parameter, an expert without tokens, a loss of exactly 0), or that rounding swallows
    (HC224), do not count.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.microbatch_rows import NOT_ADDED, SITE
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy

TIMES = 2  # micro-batches in which it must be seen


@rule("HC332", "stagnation", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once, at the step that makes it two micro-batches; it began at the first of them."""
    rows = [r for r in window.by_phase["optimizer"] if r.port == NOT_ADDED]
    now = [r for r in rows if r.site == SITE]
    before = window.history.rows(SITE, NOT_ADDED)
    if not now or not len(before) < TIMES <= len(before) + len(now):
        return
    first, worst = [*before, *now][0], now[0]
    name = next(r.site for r in rows if r.site != SITE)
    n_looked, n_lost = worst.summary.n, round(worst.summary.sum)
    n_steps = 1 + (first.step != window.step)
    yield Finding(
        code="HC332",
        kind="stagnation",
        severity="warning",
        title=f"the gradient of micro-batch {worst.microbatch} does not arrive in {name}",
        step=first.step,
        microbatch=first.microbatch,
        rank=window.rank,
        phase="grad",
        site=name,
        port="grad",
        param=name,
        cause="implementation-mismatch",
        limit=0.0,
        actual=float(n_lost),
        why=(
            f"backward handed {name} a gradient that is not 0, and what it has accumulated holds nothing of it",
            f"so it is with {n_lost} of {n_looked} parameters that got a gradient in micro-batch {worst.microbatch}",
            f"seen in {len(before) + len(now)} micro-batches"
            + (f" of steps {first.step} to {window.step}" if n_steps > 1 else f" of step {window.step}"),
        ),
        then=("the update is made without these micro-batches",),
        confidence="proven",
        remedy=Remedy(action="accumulate-all", text="add the gradient of every micro-batch to the accumulated one"),
    )
