"""Rows about what labels weigh in a step of several micro-batches: see hypocenter.detect.microbatch_rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hypocenter.detect.microbatch_rows import LOSS_SHARE, N_LABELS, SITE, TOKEN_GAP, unevenness
from hypocenter.nouns import Reading
from hypocenter.session.observers.optimizer_rows import number_row

SAME_SHARE = 1.01  # largest by smallest: micro-batches that are meant to weigh the same


@dataclass(frozen=True, slots=True)
class Labels:
    """The cross-entropy of one micro-batch.

    Attributes:
        n: labels in all.
        n_counted: those that count.
        weight: the sum of their weights in the loss.
    """

    n: float
    n_counted: float
    weight: float


def uneven_share(labels: Sequence[Labels]) -> float:
    """Return the share of the loss that is uneven where micro-batches are meant to weigh the same; 0 where not."""
    shares, counts = [abs(each.weight) for each in labels], [each.n_counted for each in labels]
    if min(counts) < 1 or not all(map(math.isfinite, shares)) or min(shares) <= 0:
        return 0.0
    return unevenness(shares, counts) if max(shares) <= SAME_SHARE * min(shares) else 0.0


def even_factors(labels: Sequence[Labels]) -> list[float]:
    """Return the factor of each micro-batch with which all labels would weigh the same."""
    n, weight = sum(each.n_counted for each in labels), sum(each.weight for each in labels)
    return [(each.n_counted / n) / (each.weight / weight) for each in labels]


def label_rows(labels: Sequence[Labels], step: int, order: Callable[[], int]) -> list[Reading]:
    """Return two rows of each micro-batch: its labels, and its share in the loss."""
    rows: list[Reading] = []
    weight = sum(each.weight for each in labels)
    for number, each in enumerate(labels):
        pair = [
            number_row(SITE, N_LABELS, step, order(), each.n_counted, call=round(each.n)),
            number_row(SITE, LOSS_SHARE, step, order(), each.weight / weight),
        ]
        rows += [replace(row, microbatch=number) for row in pair]
    return rows


def gap_row(gap: float, step: int, order: Callable[[], int]) -> Reading:
    """Return the row of the relative difference of the gradient to the one in which every label weighs the same."""
    return number_row(SITE, TOKEN_GAP, step, order(), gap)
