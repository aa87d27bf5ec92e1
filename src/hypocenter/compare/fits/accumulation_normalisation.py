"""Losses or gradients of micro-batches are averaged in another way.

What it means
    With k micro-batches the gradients are k times too large when nobody divides, and k times too small when it is done
    twice.

How it is decided
    Both sides have the same number k of micro-batches, more than one; the first that differs is the loss, or are all
    gradients together, by the factor k or 1/k, while the logits agree.

What to do
    Divide exactly once: by the number of micro-batches, or by the number of labels of the whole step.

When it is wrong
    When another constant equals k by chance.
"""

from __future__ import annotations

import math

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fitting import fit

_CLOSE = 4e-3  # relative: a loss in bfloat16


@fit("accumulation-normalisation")
def accumulation_normalisation(case: Case) -> Fit | None:
    """A factor of k or 1/k, of k micro-batches."""
    row = case.row
    if row is None or case.first.phase not in ("loss", "backward", "grad") or not case.inputs_agree:
        return None
    counts = {record.n_microbatches for records in case.records for record in records.values()} - {0}
    distance = row.comparison.distance
    if len(counts) != 1 or distance is None:
        return None
    k = float(counts.pop())
    factor = row.candidate.sum / row.baseline.sum if row.baseline.n == 1 and row.baseline.sum else distance.scale
    if k < 2.0 or factor is None:
        return None
    if not any(math.isclose(factor, wanted, rel_tol=_CLOSE) for wanted in (k, 1.0 / k)):
        return None
    more = "larger" if factor > 1.0 else "smaller"
    return Fit(
        name="accumulation-normalisation", cause="implementation-mismatch", explained=1.0, confidence="likely",
        text=f"the {case.first.phase} is {k:g} times {more} in the candidate, which is the number of micro-batches",
        values={"factor": factor}, fix="divide exactly once by the number of micro-batches",
    )  # fmt: skip
