"""The model sees the tokens that it is to predict.

What it means
    The loss asks for the next token of an input at each place, and the output there changes when later tokens are
    replaced. The loss falls by copying, and generation is useless: a causal mask is missing, off by one, or applied to
    the wrong axis; a convolution pads on both sides; a mean or a norm runs over the places. Or the output changes with
    the place at which the text ends: heads are split by a reshape without the transpose.

How it is decided
    With `--relations` the gradient of the loss by the logits tells which token is asked for at each place, whoever
    shifts. If it is the next one of an input, later tokens are replaced in a replay, from another place on in each
    sample. The first module whose output before that place moves is named. Where none does, the last third of each
    text is cut off, and the outputs for what is left must stay. Of an input that is longer than the output, as for a
    second head, the token that is asked for one to three places later and all behind it are replaced; it counts only
    where those behind it alone move nothing. Other models are not asked.

What to do
    Look at the mask of the named module, or at how it takes its input apart.

When it is wrong
    Where a model that sees all of a text is trained to repeat it, on purpose, or never sees a text of another length.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import broken
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC242",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    remedy = Remedy(action="mask-the-future", text="look at the causal mask of the named module")
    whole = Remedy(action="keep-places-apart", text="look at how the named module splits samples, places and heads")
    yield from broken(
        window, "HC242", title="the model sees the tokens that it is to predict", cause="future-leak", remedy=remedy,
        others={"beginning": ("what is predicted depends on where the text ends", whole)},
    )  # fmt: skip
