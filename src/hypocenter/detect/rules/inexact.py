"""A result is rounding for a large part, or a whole number has wrapped around or was rounded.

What it means
    An operator gives values that have next to no correct digits: positions in bfloat16, which has no 257, so that
    neighbours turn by the same angle; a sum that is too long for its format; a variance as the difference of two large
    numbers. Nothing is NaN, and training learns from noise. Or integers in 8 to 32 bits have gone beyond their
    largest and begin anew at the smallest. Or indices have gone through a format that is too short for them: others
    are looked up.

How it is decided
    At steps 0, 8, 64, 512, 4096 and every 32768th the last micro-batch is done again, with a shadow in float64 behind
    every value: each operator runs twice, on the values and on their shadows. Named is the first operator of the
    forward whose result differs from its shadow by more than 5 % of its norm (a note) or 10 % (a warning), of operands
    that do not. Healthy models of 19 families in bfloat16 and float16 differ by 3.4 % at most. Decisions (indices,
    masks, random draws) are taken as the program made them. What comes after the last use of a parameter, the loss, is
    left out: it may be a small difference of large numbers. So is what a parameter makes of exact values in float32:
    training may bring it to zero; and what is only added to float32 that stays exact to its last digits. Sums beside
    the graph, with no parameter in them, are looked at wherever they are (a count of labels that divides the loss), if
    their terms are of one sign: those cancel nothing. Integers are computed again in 64 bits. Whole numbers that are
    looked up, and come from a floating-point format, must not be beyond those of which it has every one: 256 in
    bfloat16, 2048 in float16.

What to do
    Compute it in float32, or take the large common part away first. For integers: `.long()` before the arithmetic.

When it is wrong
    A model that adds noise of its own by rounding, or uses the wrap of integers (a hash).
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import INDICES, INEXACT, WRAPPED
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

WARNED = 0.1  # of the norm


@rule(
    "HC236", "divergence", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "no mode of MindSpore runs each operator twice"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at each operator that was found."""
    for row in window.by_phase["optimizer"]:
        if row.port == INEXACT:
            yield _inexact(window, row)
        elif row.port == WRAPPED:
            yield _wrapped(window, row)


def _inexact(window: Window, row: Reading) -> Finding:
    error, op, origin = row.summary.sum, row.op.split(".")[1], row.module.split(".")[1]
    operands, dtype, *where = (*row.names, "", "")[:3]
    why = [
        f"done again with float64 behind every value it differs by {error:.2g} of its norm, its operands by {operands}"
    ]
    if row.module != row.op or where[0]:
        why.append(f"that began in the result of {origin}, in {dtype}{f', at {where[0]}' if where[0] else ''}")
    return Finding(
        code="HC236", kind="divergence", severity="warning" if error >= WARNED else "note",
        title=f"{min(error, 1.0):.0%} of the result of {op} is rounding error", step=window.step, rank=window.rank,
        phase="forward", site=row.site, op=row.op, source=row.source, cause="precision-mismatch", confidence="proven",
        limit=WARNED, actual=error, why=tuple(why), then=("training learns from noise",),
        remedy=Remedy(action="more-digits", text="compute it in float32, or take the large common part away first"),
    )  # fmt: skip


def _wrapped(window: Window, row: Reading) -> Finding:
    n, op = round(row.summary.sum), row.op.split(".")[1]
    are_indices = INDICES in row.names
    how = f"{n} of {row.call} results are not what the same operation gives in 64 bits"
    if are_indices:
        how = f"{n} of {row.call} are beyond the largest up to which {row.dtype} has every whole number"
    return Finding(
        code="HC236", kind="divergence", severity="warning",
        title=f"what {op} looks up was rounded in {row.dtype}" if are_indices else f"{op} of {row.dtype} wraps around",
        step=window.step, rank=window.rank, phase="forward", site=row.site, op=row.op, source=row.source,
        cause="precision-mismatch", confidence="proven",
        why=(how,), then=("training learns from other numbers than it was given",),
        remedy=Remedy(
            action="more-digits",
            text="keep indices whole numbers all the way" if are_indices else "call .long() on its operands",
        ),
    )  # fmt: skip
