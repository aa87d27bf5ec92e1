"""The same batches, or the same rows in a batch, in another order.

What it means
    Another seed of the sampler, another number of workers or ranks, or a resumption that did not skip what was seen.

How it is decided
    The first batch that differs is, by its digest or by sum, squares and extremes, one that the other run has at
    another step; or it holds the same numbers in another order.

What to do
    Fix the sampler's seed and the order of files; on resumption skip the batches that were taken.

When it is wrong
    Batches of the same numbers in another order can also be tokens in another order within rows.
"""

from __future__ import annotations

from hypocenter.compare.case import Case, PairedRow, Values
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fitting import fit
from hypocenter.nouns import Confidence

_MASKS = ("mask", "position")


@fit("data-order")
def data_order(case: Case) -> Fit | None:
    """A batch of another step, or its rows shuffled."""
    row = case.row
    if row is None or case.first.phase != "data" or any(word in row.spot.port for word in _MASKS):
        return None
    here = row.comparison
    rows = list(case.series(row.pair))
    for one in rows:
        there = one.comparison
        if (there.step, there.microbatch) == (here.step, here.microbatch):
            continue
        if _is_same(row.candidate, one.baseline):
            return _answer(row, f"the candidate's batch is the baseline's of {_at(one)}", "proven")
        if _is_same(row.baseline, one.candidate):
            return _answer(row, f"the baseline's batch is the candidate's of {_at(one)}", "proven")
    name = row.spot.site.rpartition(".")[2] or row.spot.port
    if any(_has_same_numbers(one.baseline, one.candidate) for one in [row, *_entering(case, row, name)]):
        return _answer(row, f"{name} holds the same numbers in another order", "likely")
    return None


def _entering(case: Case, row: PairedRow, name: str) -> list[PairedRow]:
    """Return the rows of the same tensor where the model took it in: of a batch itself only the digest is recorded."""
    found = case.rows(phase="forward", site="", port=f"in[{name}]")
    return [one for one in found if one.comparison.microbatch == row.comparison.microbatch]


def _at(row: PairedRow) -> str:
    where = row.comparison
    return f"step {where.step}" + (f", micro-batch {where.microbatch}" if where.microbatch else "")


def _is_same(one: Values, other: Values) -> bool:
    if one.digest is not None and other.digest is not None:
        return one.digest == other.digest
    return _has_same_numbers(one, other) and (one.sketch is None or bool((one.sketch == other.sketch).all()))


def _has_same_numbers(one: Values, other: Values) -> bool:
    """Return whether both hold the same numbers, as far as sums and extremes tell."""
    names = ("n", "sum", "sumsq", "min", "max", "absmax")
    return one.n > 1 and one.sumsq > 0 and all(getattr(one, name) == getattr(other, name) for name in names)


def _answer(row: PairedRow, text: str, confidence: Confidence) -> Fit:
    where = row.comparison
    return Fit(
        name="data-order", cause="data-mismatch", explained=1.0, confidence=confidence,
        text=f"the order of the data differs from step {where.step} on: {text}",
        fix="give both samplers the same seed and order; when resuming, skip what was taken",
    )  # fmt: skip
