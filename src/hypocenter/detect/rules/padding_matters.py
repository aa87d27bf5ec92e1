"""What stands under a padding mask matters.

What it means
    Outputs at places that are no padding, or of whole samples, change with the content under the padding mask. So the
    result for a sample depends on how long the others of its batch happen to be: a mask is dropped, turned round, or a
    mean is taken over padding. Or the loss of a language model asks for padding, and averages over it. Or a model of
    transformers counts positions from the padding on its left, and `generate()` from the text. Or padding is the token
    that ends each text, and neither is asked for: the model does not learn to end.

How it is decided
    With `--relations` the content under a mask of zeros and ones that covers beginnings or ends of samples is replaced
    in a replay; of tokens only what embeddings look up, for a model may tell padding from the tokens themselves. The
    first module that shows it is named. A convolution or a window that reaches over the edge of a sample is a note.
    Where no mask is given, padding is made longer. What the loss asks for is read from its gradient: places that count
    and are padding by the mask are told, but for the first place behind a sample, or before it. Without a mask: a model
    of transformers that can generate is asked for its `pad_token_id` alone behind its `eos_token_id`, and nowhere else,
    twice and more in three samples and more that end at different places. A model that is given padding on the left and
    no positions is given those that its `generate()` makes of the mask: the scores behind padding must stay. An end
    that is not learned: in three texts and more, and in all that have padding behind them, the last token by the mask
    is that of padding, the one before it is asked for, and it is asked for nowhere.

What to do
    Hand the mask on to the named module; set labels to -100 where the mask is 0, or behind the end of a text.

When it is wrong
    Where the model was trained without a mask, and padding is a part of its input (SigLIP).
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import broken, wrong
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC243",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "relations are looked at in replays of torch only, so far"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    remedy = Remedy(
        action="hand-on-the-mask",
        text="hand the padding mask on to the named module, as it wants it: is True a token there, or padding?",
    )
    positions = Remedy(
        action="give-positions",
        text="give the model position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0), or pad on the right",
    )
    given = Remedy(action="give-the-mask", text="give the model the mask that its tokenizer makes (attention_mask)")
    yield from broken(
        window, "HC243", title="what stands under a padding mask matters", cause="padding-leak", remedy=remedy,
        others={
            "generation": ("text behind padding is trained at other positions than generate() uses", positions),
            "unmasked": ("padding that no mask covers matters", given),
        },
    )  # fmt: skip
    yield from wrong(window, "HC243", cause="padding-leak")
