"""Names that were one parameter are two.

What it means
    A tied weight (the head of a language model that is its embedding, a layer that is used at several places) was one
    parameter, and is two copies now, which are trained apart from here on. A model was built anew or loaded in
    mid-run, and what made the tie was not done again, or `load_state_dict(assign=True)` or a new `nn.Parameter` has
    undone it.

How it is decided
    Which names are one parameter is noted at the first update of each optimizer, and looked at when another one makes
    its first: two names that were one, are two trained parameters now, and hold the same values, bit for bit, that are
    near (half of their norm) what the one had at steps 0, 1, 2, 4, ...

What to do
    Tie them again after loading and before the optimizer is made (`head.weight = embedding.weight`, `tie_weights()`).

When it is wrong
    Where a model is trained tied first and untied on purpose later in the same run. Runs that go on in another process
    are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import UNTIED
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule("HC265", "desync", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first update of what is untied."""
    for row in window.by_phase["optimizer"]:
        if row.port == UNTIED:
            n, one = round(row.summary.sum), row.names[0] if row.names else ""
            more = (f"the same for {n - 1} more",) if n > 1 else ()
            yield Finding(
                code="HC265", kind="desync", severity="warning", step=row.step, rank=window.rank, phase="optimizer",
                site=row.site, param=row.site, cause="state-changed", confidence="proven",
                title=f"{row.site} and {one} were one parameter, and are two",
                why=(
                    f"they were one at the first update of the optimizer of step {row.call}; this one holds two with "
                    "the same values", *more,
                ),
                then=("each is trained with its own part of the gradient: they go apart",),
                remedy=Remedy(action="tie-again", text="tie them again before the optimizer is made"),
            )  # fmt: skip
