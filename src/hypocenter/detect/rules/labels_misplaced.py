"""The loss compares outputs with labels that are not theirs.

What it means
    The difference of outputs of shape [n, 1] and labels of shape [n] has the shape [n, n]: every output is compared
    with every label, and the model learns the mean of all. Or labels that the program has shifted by one place are
    shifted once more by a model that does so itself: it learns the token after the next. Or the label of each masked
    token is the mask. Or texts have no label at all: what they are to teach was cut off. Or a rank that compares its
    samples with those of all ranks takes its own for the first ones.

How it is decided
    In a replay of a healthy micro-batch. For the first, labels change places, and the loss stays as it was although all
    outputs met all labels. Or, in one term of several, what is made of the model's inputs, or is given to a loss of
    torch that is made for two tensors of one shape (`mse_loss`), changes places at the very operation that meets the
    model's column of outputs: the loss stays, and is another where each meets its own. For the second, what the loss
    asks for, which the gradient of the logits tells, stands two places later in the input at 99 of 100 places, and not
    one place later, and labels that the program has given stand one place later. For the third, at eight places and
    more, of three samples and more, it asks for one token alone, which the input holds at these places and nowhere
    else. For texts without a label, it asks for the next token of some, and of two texts or more, an eighth of the
    batch, for none. For the last, two ranks whose parameters and buffers are the same exchange their micro-batches
    (what was the same in two steps stays), with the same random numbers: neither comes to the loss that the other came
    to, nor does each to its own, as of a loss over all ranks. Not asked where the outputs of one rank move when
    another one puts its samples into another order.

What to do
    Give both the same shape; give a model that shifts labels itself the tokens as they are; clone labels before
    tokens are masked.

When it is wrong
    Where two sets are compared whatever their order (moments, kernels), by tensors of different dimensions. Where ranks
    with the same weights are given different tasks on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import wrong
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule(
    "HC252",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "the loss is looked at in replays of torch only, so far"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    yield from wrong(window, "HC252", cause="labels-misplaced", confidence="likely")
