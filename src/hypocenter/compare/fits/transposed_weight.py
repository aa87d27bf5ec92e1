"""A square weight was loaded as its transpose.

What it means
    Formats that keep (inputs, outputs), as Conv1D of GPT-2, and those that keep (outputs, inputs) were mixed up. Where
    the matrix is square nothing complains.

How it is decided
    Of a square parameter both sides hold the same numbers (norm, sum and extremes agree) in another order, and its
    outputs do not hold the same numbers, as they would when rows were permuted. With recorded values: the one is the
    transpose of the other.

What to do
    Transpose on loading; look at the other weights of the same kind too.

When it is wrong
    A permutation of the columns looks the same when no values were recorded: the confidence is then "possible".
"""

from __future__ import annotations

import numpy as np

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import is_at_start, is_shuffled, outputs_of
from hypocenter.compare.fitting import fit
from hypocenter.nouns import Confidence


@fit("transposed-weight")
def transposed_weight(case: Case) -> Fit | None:
    """The same numbers, square, and not by rows."""
    row = case.row
    card = case.card(row, side=0) if row is not None else None
    if row is None or card is None or not is_at_start(case) or not is_shuffled(row):
        return None
    if len(card.shape) != 2 or card.shape[0] != card.shape[1]:
        return None
    values = case.tensors(row)
    if values is not None:
        mine, other = (each.reshape(card.shape) for each in values)
        if not np.array_equal(mine.T, other):
            return None
        return _answer(case, "proven", f"{case.first.site} is the transpose of the baseline's")
    owner = case.first.site.rpartition(".")[0]
    outputs = outputs_of(case, owner)
    if outputs and all(map(is_shuffled, outputs)):
        return None
    return _answer(
        case, "possible", f"{case.first.site} holds the same numbers in another order: transposed, or with its columns "
        "permuted (record at level tensors to tell)",
    )  # fmt: skip


def _answer(case: Case, confidence: Confidence, text: str) -> Fit:
    return Fit(
        name="transposed-weight", cause="init-mismatch", explained=1.0, confidence=confidence, text=text,
        fix=f"transpose {case.first.site} when loading",
    )  # fmt: skip
