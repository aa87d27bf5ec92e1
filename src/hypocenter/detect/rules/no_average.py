"""An average of the weights is no average of them.

What it means
    A copy of the model that is to follow it (an EMA for evaluation, a teacher, a target network) goes another way: away
    from the weights, because a sign is wrong; to the weights of another layer, because parameters were paired in
    another order; it keeps next to nothing of what it was, for the decay and its complement are exchanged; or it begins
    at weights that have nothing to do with the model, because a checkpoint was loaded into the model alone. Or it is
    the weights themselves, because nothing was copied; so may be the reference that a Trainer holds the model against,
    or the weights that were kept while a model was evaluated with its average, and are put back.
    Training itself is often not harmed; what is evaluated, or taught by the copy, is.

How it is decided
    One update makes of an average `average + a * (weight - average)`, with one `a` between 0 and 1 for all its tensors.
    Samples of up to eight of them are kept after an update of the model and compared before the next: the move must lie
    on the way from the average to its source, to 3 % (by the angle), or else nothing is said. A warning: at three moves
    `a` is negative for all; or a tensor that goes another way goes to another parameter of its shape, as far as all
    others go to theirs; or, at the first move, the average of most tensors is about at right angles to its source
    (cosine below 0.3), and `a` is below 0.5; or `a` is 0.9 or more and the average still not its source, bit for bit,
    at two looks after the first sixteen updates, in which a decay may grow; or, before two updates, the program has
    averaged a weight with itself: `lerp_`, or `mul_(d)` and `add_(x, alpha=1 - d)`, of one memory; or between two
    updates other values are copied over a weight, a model is called, and it is copied over itself; or, at two of the
    steps 0, 1, 2, 4, ... 64, the `ref_model` or `teacher_model` of a Trainer, which is not its model, has tensors in
    the memory of what its optimizer moves. A note: one tensor stays as it was at four moves of the others.

What to do
    `average.lerp_(weight, 1 - decay)`, pair parameters by name, and begin with a copy of the weights.

When it is wrong
    Where an average of another model is what is wanted. Copies are seen that `copy.deepcopy` makes, that are called, or
    that are dicts or lists of clones of all parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import (
    AWAY,
    ELSEWHERE,
    FAR_AWAY,
    FORGETS,
    LEFT_BEHIND,
    OWN_AVERAGE,
    OWN_COPY,
    OWN_REFERENCE,
)
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy


@rule(
    "HC261", "config", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "copies of a model are not followed there yet"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire once for each copy."""
    for row in window.by_phase["optimizer"]:
        if row.port == OWN_REFERENCE:
            yield _of_reference(window, row)
        elif row.port == OWN_COPY:
            yield _of_copy(window, row)
        elif row.port in (AWAY, ELSEWHERE, LEFT_BEHIND, FAR_AWAY, FORGETS, OWN_AVERAGE):
            title, why, remedy = _words(row)
            yield Finding(
                code="HC261", kind="config", severity="note" if row.port == LEFT_BEHIND else "warning",
                step=row.step - (int(row.op or 0) if row.port == OWN_AVERAGE else 0),
                rank=window.rank, phase="optimizer", site=row.site, param=row.site, title=title, cause="program-error",
                confidence="proven" if row.port in (AWAY, ELSEWHERE, OWN_AVERAGE) else "likely", why=(why,),
                actual=None if row.port == OWN_AVERAGE else row.summary.sum,
                then=("what is evaluated or taught by it is not what was trained",), remedy=remedy,
            )  # fmt: skip


def _of_reference(window: Window, row: Reading) -> Finding:
    n = round(row.summary.sum)
    others = f", and those of {n - 1} more of the optimizer's parameters" if n > 1 else ""
    return Finding(
        code="HC261", kind="config", severity="warning", step=row.call, rank=window.rank, phase="optimizer",
        site=row.site, param=row.site, title=f"the reference model of {row.op} is the model that is trained",
        cause="program-error", confidence="proven",
        why=(f"{row.module} holds the values of {row.site}{others}, in the same memory: they move at each update",),
        then=("the loss holds the model against itself",),
        remedy=Remedy(action="copy", text="give the reference weights of its own, as copy.deepcopy(model) does"),
    )  # fmt: skip


def _of_copy(window: Window, row: Reading) -> Finding:
    n = round(row.summary.sum)
    others = f", and {n - 1} more like it" if n > 1 else ""
    return Finding(
        code="HC261", kind="config", severity="warning", step=row.step, rank=window.rank, phase="optimizer",
        site=row.site, param=row.site, title=f"what is put back as {row.site} is {row.site} itself",
        cause="program-error", confidence="proven",
        why=(f"other values were copied over {row.site}{others}, a model was called, then it was copied over itself",),
        then=("training goes on from the values that were meant for the time between",),
        remedy=Remedy(action="copy", text="keep clones of the weights: p.detach().clone()"),
    )  # fmt: skip


def _words(row: Reading) -> tuple[str, str, Remedy]:
    name, a, of = row.site, row.summary.sum, f"in a {row.module}" if row.module in ("dict", "list") else row.module
    if row.port == AWAY:
        why = f"at each of its first updates it moved {a:.3g} times the way to the weights, on that very line"
        remedy = Remedy(action="mend-sign", text="add (1 - decay) * (weight - average), or use lerp_")
        return f"the average {of} moves away from the weights", why, remedy
    if row.port == ELSEWHERE:
        why = f"it goes {a:.3g} of the way to {row.op} at an update, as all others go to their own"
        remedy = Remedy(action="pair-by-name", text="pair the parameters of the two by name")
        return f"the average {of} has {row.op} in the place of {name}", why, remedy
    if row.port == LEFT_BEHIND:
        why = f"others go {a:.3g} of the way to their sources at an update, and this one stays as it was"
        remedy = Remedy(action="average-all", text="update all parameters of the average")
        return f"the average {of} leaves out {name}", why, remedy
    if row.port == OWN_AVERAGE:
        others = f", and {row.call - 1} more like it" if row.call > 1 else ""
        why = f"before each of {a:.0f} updates the program has averaged {name}{others} with itself: both are one memory"
        return (
            f"the average of {name} is {name} itself",
            why,
            Remedy(action="copy", text="begin with clones of the weights"),
        )
    if row.port == FORGETS:
        why = f"an update goes {a:.3g} of the way to the weights, and keeps {1 - a:.2g} of what it was"
        remedy = Remedy(action="exchange-decay", text="average.lerp_(weight, 1 - decay)")
        return f"the average {of} is hardly one", why, remedy
    why = f"at its first update it lies at a right angle to them (cosine {a:.2g}), and moves slowly"
    remedy = Remedy(action="begin-at-the-weights", text="begin with a copy of the weights, or load the average too")
    return f"the average {of} begins at other weights than the model", why, remedy
