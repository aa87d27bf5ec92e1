"""A parameter that the loss depends on gets no gradient: an operation on the way has none.

What it means
    An optimizer holds a parameter, the loss depends on it, and its gradient is always 0 or missing: between them is a
    rounding, a sign, a comparison, an index (argmax, topk) or a number handed to Python (`.item()`), none of which has
    a gradient. The parameter is never trained: a quantiser without a straight-through estimate, a router whose scores
    choose an expert and weigh nothing, a threshold that is learned in name only. Or it is used inside of a reentrant
    checkpoint that is given nothing that needs a gradient (frozen embeddings): such a checkpoint is never gone back
    through. Or an autograd function of the program's own reads it without being given it (a checkpoint by hand that is
    given the block): its backward returns gradients of what it is given alone.

How it is decided
    Where an optimizer holds parameters without a gradient, a healthy micro-batch is done again and their values are
    followed as far as gradients go. A parameter counts if all its ways to the loss end at such operations; if other
    values of it, in a replay, give another loss; if the program cuts it off nowhere by `detach()` or `no_grad()`; and
    if it has no gradient at the next three updates either.

What to do
    Checkpoint with `use_reentrant=False`, or let what the checkpoint is given need a gradient. Give it a way with a
    gradient: a straight-through estimate, the soft score as a weight, a loss of its own. Or take it out of the
    optimizer.

When it is wrong
    Where such a parameter is moved by something else than its gradient, and the optimizer holds it by accident.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import wrong
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule(
    "HC258",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "the loss is looked at in replays of torch only, so far"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    yield from wrong(window, "HC258", cause="dead-gradient")
