"""The backward of an autograd function is not the derivative of its forward.

What it means
    A `torch.autograd.Function` of the program computes a gradient by a formula of its own, and the formula is wrong: a
    term or a factor is missing. Training goes on with gradients that do not lead down.

How it is decided
    At the inputs of a healthy micro-batch the function is called in float64, and what backward gives along five random
    directions is compared with central differences of the forward. A function that is flat where it has gradients
    (rounding with a straight-through gradient, spikes), that jumps, that draws at random, or that gives back its input
    (reversed and scaled gradients, communication) is left alone, and so is one that does not run in float64. In
    MindSpore the same is asked of cells with a `bprop` of their own, without parameters, that are given floats alone.

What to do
    Mend the formula; `torch.autograd.gradcheck` confirms it.

When it is wrong
    Where a smooth function is given a gradient that is meant to be another.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import wrong
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC253", "data", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    yield from wrong(window, "HC253", cause="wrong-derivative")
