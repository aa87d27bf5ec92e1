"""Dropout stays on in evaluation.

What it means
    `torch.nn.functional.dropout` drops unless it is told not to: `training` is True by default, whatever the mode of
    the model. So does `scaled_dot_product_attention` by its `dropout_p`. After `model.eval()` such a model still drops:
    each score is another one, a schedule that follows it is led by noise, and what is shipped is worse than what was
    trained.

How it is decided
    In a replay of a healthy micro-batch in evaluation mode, calls of these functions by modules that would drop
    something. Where the line itself says `training=True` it is a note: some want it (Monte-Carlo dropout, Tacotron's
    prenet). `nn.Dropout` follows the mode of the model and is never meant.

What to do
    Pass `training=self.training`, or use `nn.Dropout`; for attention `dropout_p=rate if self.training else 0.0`.

When it is wrong
    Where evaluation is meant to drop and the program leaves that to the default.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import wrong
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule(
    "HC267",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "the forward is looked at in replays of torch only, so far"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which a replay in evaluation mode would drop something."""
    yield from wrong(window, "HC267", cause="program-error", confidence="likely")
