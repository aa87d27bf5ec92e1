"""An update is not what its optimizer's rule makes.

What it means
    Within the step of an optimizer a weight or its state has become something else than the optimizer's own rule makes
    of the weight, its gradient, its state and its options: decay is applied twice, a hook or a patched step changes the
    result, an average is written over the weights, the update is scaled or left out for some parameters, a counter of
    steps runs wrong. Or the state of an optimizer of the program's own lies in the memory of a gradient, for it was set
    to one without `clone()`: backward adds to it, and `zero_grad` deletes it.

How it is decided
    At steps of `--audit`, for SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad and RMSprop of torch, elements of every
    parameter are kept before the step, and the rule is done again on them in float64. How far rounding may have moved
    each result follows from the operations of the rule and the format that they are computed in: 16 such errors are a
    fault. Gradients and options that a hook changes inside the step are those that count. A parameter counts when it
    has obeyed at two audited steps before.

    Of an optimizer whose rule is not known (one of the program's own, Lion, Adadelta, ...) the first audited steps tell
    what class of rule it follows: which of the gradient, the weight, the state, their signs and roots are added up,
    with multiples that are the same for all parameters of a group, whatever they are at each step. From then on a
    parameter that leaves what most of its group keep is a note.

    Where its first step shows two states to be means of gradients and of their squares, the correction of each
    parameter's bias is read off its change, at two steps: in an error it is that of step 1, 2, 3, ... for one after the
    other. Where two states are averages of gradients and of their squares, what they keep and what they take in is
    read off two audited steps: for gradients both sum to 1, and then they must for squares.

    A state of the shape of its weight overlaps a gradient in memory, before two of the updates 1, 2, 4, ... 64, and is
    not called one ("grad").

What to do
    Look at the hooks of the optimizer, at what patches its step, and at what else writes to the weights there.

When it is wrong
    The numbers are certain, the intention is not: a program may write to its weights from some step on. Where it has
    hooks around the optimizer's step it is a note, which names the hook. A rule that was learned may have a case that
    its first steps did not show (a clip of one parameter's update).
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import EACH_PARAMETER, NO_AVERAGE_OF, NOT_BY_RULE, OVERLAPS
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

STILL = 0.01  # of the change that was meant


@rule(
    "HC235",
    "desync",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
)
def check(window: Window) -> Iterator[Finding]:
    """Fire once a step, for all parameters that are off, and once for those whose state is a gradient."""
    yield from (_overlapping(window, row) for row in window.by_phase["optimizer"] if row.port == OVERLAPS)
    rows = [row for row in window.by_phase["optimizer"] if row.port == NOT_BY_RULE]
    yield from (_counting(window, row) for row in rows if row.module == EACH_PARAMETER)
    yield from (_averaging(window, row) for row in rows if row.module == NO_AVERAGE_OF)
    off = [row for row in rows if row.module not in (EACH_PARAMETER, NO_AVERAGE_OF)]
    if not off:
        return
    first = off[0]
    yield Finding(
        code="HC235",
        kind="desync",
        severity="note" if first.source is not None or first.names else "warning",
        title=_title(first),
        step=window.step,
        rank=window.rank,
        phase="optimizer",
        site=first.site,
        port=first.module,
        param=first.site,
        cause="program-error",
        source=first.source,
        limit=1.0,
        actual=None if first.summary.n_nan else first.summary.sum,
        why=tuple(_why(first, off)),
        then=("training goes on from values that the optimizer's rule did not make",),
        confidence="likely" if first.names else "proven",
    )


def _overlapping(window: Window, row: Reading) -> Finding:
    n = round(row.summary.sum)
    return Finding(
        code="HC235", kind="desync", severity="warning", step=window.step, rank=window.rank, phase="optimizer",
        title=f"the state {row.module!r} of {row.site} lies in the memory of a gradient",
        site=row.site, port=row.module, param=row.site, cause="program-error", confidence="proven",
        why=(
            f"before each of {row.call} updates that were looked at both had the same addresses",
            f"the same holds for {n} parameters of {row.op}",
        ),
        then=("backward adds to what the optimizer remembers, and zero_grad deletes it",),
        remedy=Remedy(action="clone", text="set the state to a copy of the gradient: p.grad.clone()"),
    )  # fmt: skip


def _counting(window: Window, row: Reading) -> Finding:
    n = round(row.summary.sum)
    return Finding(
        code="HC235", kind="desync", severity="warning", step=window.step - row.call, rank=window.rank,
        phase="optimizer", title=f"{row.op} counts a step for each of {n} parameters", cause="program-error",
        confidence="proven",
        why=(
            f"within one step the bias correction of {n} parameters is that of steps {window.step * n + 1}, "
            f"{window.step * n + 2}, {window.step * n + 3}, ..., one after the other",
            f"so it is from step {window.step - row.call} on",
        ),
        then=("means of few gradients are taken for those of many: the first updates are too small or too large",),
        remedy=Remedy(action="count-once", text="count the step before the loop over parameters"),
    )  # fmt: skip


def _averaging(window: Window, row: Reading) -> Finding:
    square, kept, taken, both, mean = row.names or ("", "", "", "", "")
    return Finding(
        code="HC235", kind="desync", severity="warning", step=window.step - row.call, rank=window.rank,
        phase="optimizer", title=f"the state {square!r} of {row.op} is no average of squares", port=square,
        cause="program-error", confidence="proven",
        why=(
            f"it becomes {kept} times what it was and {taken} times the square of the gradient: both sum to {both}",
            f"{mean!r} is an average of the same gradients, with a sum of 1",
        ),
        then=("steps are too small or too large by the root of that, and more so from step to step",),
        remedy=Remedy(action="mend-betas", text=f"take in 1 - {kept} of the square, one minus the beta that it keeps"),
    )  # fmt: skip


def _title(row: Reading) -> str:
    factor, kind = row.summary.sum, row.op
    if row.module == "step":
        return f"{kind} does not count this step of {row.site} once"
    if row.module != "value":
        return f"the state {row.module!r} of {row.site} is not what {kind} makes of its gradient"
    if row.summary.n_nan:
        return f"the update of {row.site} is not what {kind} makes of its gradient"
    if abs(factor) < STILL:
        return f"{row.site} is not updated, though {kind} makes an update of its gradient"
    return f"the update of {row.site} is {factor:.3g} times what {kind} makes of its gradient"


def _why(first: Reading, off: list[Reading]) -> Iterator[str]:
    if first.names:
        what = f"the change of {'a weight' if first.module == 'value' else repr(first.module)}"
        yield f"by its first steps {what} is {first.names[0]}, with the same multiples for all parameters of a group"
    else:
        yield f"the step was done again in float64, from the weights, gradients, state and options that {first.op} had"
    if len(off) > 1:
        others = ", ".join(row.site for row in off[1:4])
        yield f"the same for {len(off) - 1} more parameters: {others}{' ...' if len(off) > 4 else ''}"
    to = "" if first.names else ", to rounding"
    yield f"at {first.call} audited steps before it was what the rule makes{to}"
