"""Rows of the batch come with other labels than before.

What it means
    What belonged together no longer does: inputs and labels were shuffled apart, taken from different batches, sorted
    by length one without the other; labels were numbered anew, a mask was inverted.

How it is decided
    A digest of each row of each tensor of the batch, at every step (of large batches of a part of the rows, the same
    part each time). Rows are known by the tensor with the most values a row. Where at least 32 rows came again and each
    with the same row of another tensor, at least two in one batch, and a quarter of those known, come with another.
    Where all of them came once before, in one step, it is a note: that step may be the wrong one.

    Or, at the end of a second pass over all rows, they came with the same label no more often than chance has it,
    though the labels of both passes are the same and as many of each, and all else that a row came with is the same.

What to do
    Compare how inputs and labels of this step were put together with the steps before.

When it is wrong
    When labels are meant to change from a step on: pseudo-labels that are made anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.batch_rows import Parted, key_of
from hypocenter.detect.batches import batches_of
from hypocenter.detect.engine import rule
from hypocenter.detect.replica_rows import BATCH_PREFIX
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading


@rule(
    "HC413",
    "data",
    severity="warning",
    reads=("batch",),
    quiet=lambda series: series.batches.are_all_new,
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the batch in which pairs are others than before."""
    for microbatch, batch in batches_of(window.by_phase["data"]).items():
        if (key := key_of(batch)) is None:
            continue
        for parted in window.history.pairs.add(key, batch, window.step):
            told = window.history.told_fields
            if parted.other_step not in told:
                yield _finding(window, microbatch, key, parted)
            told.add(window.step)


def _finding(window: Window, microbatch: int, key: Reading, parted: Parted) -> Finding:
    if parted.by_chance is not None:
        return _never_bound(window, microbatch, key, parted)
    name, known_by = (f"batch.{site.removeprefix(BATCH_PREFIX)}" for site in (parted.site, key.site))
    n, is_sure = len(parted.places), parted.other_step is None
    return Finding(
        code="HC413",
        kind="data",
        severity="warning" if is_sure else "note",
        title=f"{n} rows of {known_by} come with another row of {name} than "
        + ("before" if is_sure else f"in step {parted.other_step}"),
        step=window.step,
        microbatch=microbatch,
        rank=window.rank,
        phase="data",
        site="batch",
        port=parted.site.removeprefix(BATCH_PREFIX),
        cause="data-mismatch",
        samples=parted.places,
        why=(
            f"of {parted.n_known} rows of the batch it is known what they came with, {n} come with another",
            f"before, {parted.n_before} rows that came again came with the same",
            *(() if is_sure else ("they came once before, so which of both steps is wrong is not known",)),
        ),
        confidence="proven" if is_sure else "possible",
    )


def _never_bound(window: Window, microbatch: int, key: Reading, parted: Parted) -> Finding:
    name, known_by = (f"batch.{site.removeprefix(BATCH_PREFIX)}" for site in (parted.site, key.site))
    return Finding(
        code="HC413", kind="data", severity="warning", step=window.step, microbatch=microbatch, rank=window.rank,
        title=f"rows of {known_by} and of {name} come together by chance", phase="data", site="batch",
        port=parted.site.removeprefix(BATCH_PREFIX), cause="data-mismatch", confidence="likely",
        why=(
            f"of {parted.n_known} rows that came again {parted.n_before} came with the same row of {name}; by chance "
            f"{parted.by_chance:.0f} would",
            "both passes hold the same labels, as many of each; all else that came with a row is the same in both",
        ),
        then=("there is nothing to learn from such pairs",),
    )  # fmt: skip
