"""The output depends on the label.

What it means
    The model is shown the answer: it is called with labels that reach its output, a column of its input is the label,
    a decoder is fed the very token that it is to give, or labels are not shifted. The loss falls; without the label
    the model can do nothing.

How it is decided
    With `--relations` labels are replaced in a replay, and so are columns of inputs that equal the label in all rows;
    the output must stay. A decoder that is fed labels may depend on earlier ones only. A model whose outputs depend on
    tokens up to their place, and which is asked for the token at that place, sees its answer. It is a note where it
    looks at no other token, or where none of the batch tells of the next (pairs of neighbours come again no more often
    than in 400 random orders): then there is nothing else to learn.

What to do
    Take the label out of the input; shift the labels by one place.

When it is wrong
    Where a model is meant to reproduce a part of its input, such as an autoencoder that sees no later token.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import broken
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC244",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "relations are looked at in replays of torch only, so far"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    remedy = Remedy(action="take-out-the-label", text="take the label out of the input, or shift labels by one place")
    yield from broken(window, "HC244", title="the output depends on the label", cause="label-leak", remedy=remedy)
