"""A tensor of the batch holds other values than in all batches before.

What it means
    Another scale (a normalisation that was left out), another source, labels of another range, other padding, an
    inverted mask, values that were rounded, one row that is far larger, or a field that holds one value only. The loss
    may not show it for long.

How it is decided
    Mean, spread and extremes of every tensor that the model is called with, and of labels that code after it uses, are
    taken at every step, of large tensors from a sample. The root mean square and the inverse of the spread are
    compared with those before as the loss is (HC401), the distance of the mean from the usual mean as well, in usual
    spreads, and so is the largest magnitude, with its row. Of a sample of 256 elements: shares of those that equal the
    smallest, the largest, the next one (padding), of different ones, of rows that hold one value only, of whole numbers
    by their remainder of 16 (classes), and of labels that are the inputs, or the inputs one further; they are compared
    with 32 batches before. A field that is constant for the first time in more than 32 batches, where that is no chance
    by the shares of its values, and labels that were the inputs and no longer are, are warnings; the others are notes.

What to do
    Compare how this batch was made with how those before it were.

When it is wrong
    When the data are meant to change here: a curriculum, another data set.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.batch_fields import Change, Field
from hypocenter.detect.batches import batches_of
from hypocenter.detect.engine import rule
from hypocenter.detect.replica_rows import BATCH_PREFIX
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule(
    "HC412",
    "data",
    severity="warning",
    reads=("batch",),
    quiet=lambda series: series.batches.are_steady,
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the batch that differs from those before."""
    for microbatch, rows in batches_of(window.by_phase["data"]).items():
        for row in rows:
            change = window.history.fields.setdefault(row.site, Field()).add(row)
            if change is None:
                continue
            window.history.told_fields.add(window.step)
            name = f"batch.{row.site.removeprefix(BATCH_PREFIX)}"
            is_law = change.what in ("constant", "input", "next input")
            yield Finding(
                code="HC412",
                kind="data",
                severity="warning" if is_law else "note",
                title=f"{name} {_told(change)}",
                step=window.step,
                microbatch=microbatch,
                rank=window.rank,
                phase="data",
                site="batch",
                port=row.site.removeprefix(BATCH_PREFIX),
                cause="data-shifted",
                samples=() if change.row is None else (change.row,),
                limit=change.usual,
                actual=change.now,
                confidence="likely" if is_law else "possible",
            )


_SHARES = {
    "lowest": "of its values equal the smallest one",
    "highest": "of its values equal the largest one",
    "still": "of its values equal the one after them, as padding does",
    "different": "of its values differ from all others looked at",
    "rows": "of its rows hold one value only",
    "input": "of the labels equal the input at their place",
    "next input": "of the labels equal the input one further",
}


def _told(change: Change) -> str:
    now, usual = change.now, change.usual
    if change.what in ("constant", "alike"):
        return f"holds {now:.5g} only: for the first time all of its values are equal"
    if change.what in _SHARES:
        return f"changed: {now:.0%} {_SHARES[change.what]}; usually {usual:.0%}"
    if change.what == "classes":
        return f"has its values in other proportions: {now:.0%} of them would have to be others; usually {usual:.0%}"
    if change.what in ("lowest is", "highest is"):
        end = "smallest" if change.what == "lowest is" else "largest"
        return f"has {now:.5g} as its {end} value; in each of {change.n_before} batches before it was {usual:.5g}"
    words = {"size": "has values of size", "spread": "has a spread of", "mean": "has a mean of"}
    if change.what == "row":
        return f"holds {now:.4g} in row {change.row}, {now / usual:.3g} times the usual largest one ({usual:.4g})"
    factor = now / usual if usual else 0.0
    times = f", {factor:.3g} times" if change.what != "mean" and factor else ""
    return f"{words[change.what]} {now:.4g}; usually {usual:.4g}{times}"
