"""A logger hides values that are not finite.

What it means
    The step was not finite, and what the program logs does not show it. The Transformers Trainer replaces a loss
    that is NaN or infinite by the average of the earlier ones (`logging_nan_inf_filter`, on by default).
    `wandb.watch` leaves non-finite values out of its histograms of gradients.

How it is decided
    At a step whose loss is not finite, the Trainer with that option is the caller; at one whose gradients are not
    finite, wandb has hooks on gradients.

What to do
    Trust the findings of this run, and pass `logging_nan_inf_filter=False`.

When it is wrong
    It is a fact, and only a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import HIDDEN_GRADIENT, HIDDEN_LOSS, past, row_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding

TITLES = {
    HIDDEN_LOSS: "the Trainer's log hides it: logging_nan_inf_filter shows the average of earlier losses",
    HIDDEN_GRADIENT: "the histograms of wandb.watch hide it: they leave out values that are not finite",
}


@rule(
    "HC219",
    "nonfinite",
    severity="note",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "those loggers, the Trainer of Transformers and wandb.watch, are of torch programs only"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire a note once for each logger that hides such a value."""
    for site, title in TITLES.items():
        row = row_of(window.readings, site)
        if row is None or any(past(window, site)):
            continue
        yield Finding(
            code="HC219",
            kind="nonfinite",
            severity="note",
            title=title,
            step=window.step,
            rank=window.rank,
            phase="loss" if site == HIDDEN_LOSS else "grad",
            site="loss" if site == HIDDEN_LOSS else None,
            confidence="proven",
            why=(f"{row.module} is in use at a step that is not finite",),
        )
