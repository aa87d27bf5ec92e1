"""A frozen parameter goes on moving.

What it means
    `requires_grad` was switched off for a parameter that had been trained, and its optimizer moves it all the same: its
    old gradient is set to zero in each step and not to None, so momentum carries it on and weight decay shrinks it; or
    nobody touches the old gradient, and each update follows it once more. Or something writes to a frozen weight that
    trained ones are beside: adapters were added to it, to evaluate or save the merged model, and not taken out again.

How it is decided
    The parameter asked for a gradient at one of the first four updates, asks for none now, and has a gradient of zeros,
    or the one that it had four updates ago, in the same place and not written to since. Samples of it before and after
    an update: they differ at two looks in a row, at every fourth update.

    Or a weight that no optimizer holds, beside two trained factors of a lower rank whose product has its shape, stayed
    between four looks, and then differs by more than what arithmetic rounds; no trained neighbour has half the norm or
    less (adapters that were begun anew), and it did not go towards a trained one of its shape (a target, an average).

What to do
    `zero_grad(set_to_none=True)`, which is the default, or take the parameter out of the optimizer. Take adapters out
    of a weight after each merge, from a copy of it: arithmetic rounds.

When it is wrong
    Who lets frozen parameters decay on purpose, or writes to them now and then.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import FROZEN_MOVES, FROZEN_WRITTEN, OLD
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC262", "config", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "it is not looked at there yet"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen again."""
    for row in window.by_phase["optimizer"]:
        if row.port == FROZEN_WRITTEN:
            yield Finding(
                code="HC262", kind="config", severity="warning", step=row.step, rank=window.rank, phase="param",
                title=f"{row.site} is frozen, and something has written to it", site=row.site, param=row.site,
                cause="program-error", confidence="likely", source=row.source,
                why=(
                    f"no optimizer holds it, it stayed between {row.summary.sum:.0f} looks before, and has changed "
                    "since the last update",
                    "what is trained beside it goes on from where it was",
                ),
                then=("if adapters were merged into it they count twice",),
                remedy=Remedy(action="unmerge", text="put the weight back before training goes on"),
            )  # fmt: skip
        if row.port == FROZEN_MOVES:
            is_old, n = row.op == OLD, round(row.summary.sum)
            yield Finding(
                code="HC262", kind="config", severity="warning", step=row.step - row.call, rank=window.rank,
                phase="optimizer", site=row.site, param=row.site,
                title=f"{row.site} is frozen, and {row.module} moves it",
                cause="program-error", confidence="proven",
                why=(
                    f"it asks for no gradient, the one that it has is {'of before' if is_old else '0'}, and each "
                    "update changes it",
                    *((f"it was trained at step {row.names[0]}, and is frozen since",) if row.names else ()),
                    *((f"{n - 1} more are frozen and have a gradient",) if n > 1 else ()),
                ),
                then=("its old gradient is used once more" if is_old else "momentum and weight decay act on it",),
                remedy=Remedy(action="no-gradient", text="zero_grad(set_to_none=True), or out of the optimizer"),
            )  # fmt: skip
