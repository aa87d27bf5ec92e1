"""Attention is normalised over the wrong dimension.

What it means
    Weights of places with places were made to sum to 1 over one dimension, and the product with the values sums over
    the other. What comes out is no average of values: its size depends on what other places ask for.

How it is decided
    In a replay of a healthy micro-batch, results of `softmax` are followed through casts, dropout and views to the
    product that they are in. Only square weights count: points that are shared out among clusters or capsules are
    summed over the other dimension by design, and where a dimension is followed back to one of a parameter, there are
    no places along it, but clusters or slots.

What to do
    Take the softmax over the dimension that the product sums over: of `weights @ values` the last.

When it is wrong
    Where places compete for places on purpose, and the sum is not divided by what they got.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import wrong
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule(
    "HC256",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "the forward is looked at in replays of torch only, so far"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which a replay shows attention over the wrong dimension."""
    yield from wrong(window, "HC256", cause="implementation-mismatch", confidence="likely")
