"""A loss function is given what it is not made for.

What it means
    `cross_entropy` takes scores, `nll_loss` and the first argument of `kl_div` logarithms of probabilities over the
    dimension of classes, `binary_cross_entropy_with_logits` scores before a sigmoid. Of something else each of them
    computes a number that falls in training, but has another lower bound, or none, and another minimum. And MindSpore
    differentiates the sum of all that a function gives: of the loss and of each of the logits beside it.

How it is decided
    A healthy micro-batch is done again and each call of a loss function of torch is looked at: whether rows lie between
    0 and 1 and sum to 1, whether their exponentials sum to 1 and over which dimension, whether a logarithm of a
    probability lies above 0, and whether a sigmoid was the last to be taken. Log-probabilities that the program weighs
    (focal loss, advantages) are left alone. Where MindSpore differentiates a function that gives one number and, beside
    it, something of two dimensions or more that depends on parameters, without `has_aux=True`, the gradient of the
    first alone must be that of all.

What to do
    Give the function what its page asks for: the named line says which call it is.

When it is wrong
    Where a loss is meant to be bounded so, by a softmax of a softmax.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import wrong
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule(
    "HC251",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    yield from wrong(window, "HC251", cause="loss-misused")
