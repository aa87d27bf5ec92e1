"""A tensor of the batch holds other values than in all batches before.

What it means
    Another scale (a normalisation that was left out), another source, labels of another range, or a field that holds
    one value only. The loss may not show it for long.

How it is decided
    Mean, spread and extremes of every tensor that the model is called with, and of labels that code after it uses, are
    taken at every step, of large tensors from a sample. The root mean square and the inverse of the spread are
    compared with those before as the loss is (HC401), the distance of the mean from the usual mean as well, in usual
    spreads. A field that is constant for the first time in more than 32 batches is a warning; the others are notes.

What to do
    Compare how this batch was made with how those before it were.

When it is wrong
    When the data are meant to change here: a curriculum, another data set.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.batches import Change, Field, batches_of
from hypocenter.detect.engine import rule
from hypocenter.detect.replica_rows import BATCH_PREFIX
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule(
    "HC412",
    "data",
    severity="warning",
    reads=("batch",),
    not_in={"mindspore": "the tensors of a batch are not looked at there yet"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the batch that differs from those before."""
    for microbatch, rows in batches_of(window.by_phase["data"]).items():
        for row in rows:
            change = window.history.fields.setdefault(row.site, Field()).add(row)
            if change is None:
                continue
            name = f"batch.{row.site.removeprefix(BATCH_PREFIX)}"
            is_constant = change.what == "constant"
            yield Finding(
                code="HC412",
                kind="data",
                severity="warning" if is_constant else "note",
                title=f"{name} {_told(change)}",
                step=window.step,
                microbatch=microbatch,
                rank=window.rank,
                phase="data",
                site="batch",
                port=row.site.removeprefix(BATCH_PREFIX),
                cause="data-shifted",
                limit=change.usual,
                actual=change.now,
                confidence="likely" if is_constant else "possible",
            )


def _told(change: Change) -> str:
    if change.what == "constant":
        return f"holds {change.now:.5g} only: for the first time all of its values are equal"
    words = {"size": "has values of size", "spread": "has a spread of", "mean": "has a mean of"}
    factor = change.now / change.usual if change.usual else 0.0
    times = f", {factor:.3g} times" if change.what != "mean" and factor else ""
    return f"{words[change.what]} {change.now:.4g}; usually {change.usual:.4g}{times}"
