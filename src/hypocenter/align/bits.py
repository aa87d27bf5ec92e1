"""Whether two recordings of the same program are equal to the bit, as far as they hold."""

from __future__ import annotations

from hypocenter.compare.comparison import RowComparison
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.walk import Options
from hypocenter.record.reader import RecordedRun


def first_unequal(once: RecordedRun, again: RecordedRun) -> RowComparison | None:
    """The first row, in step and execution order, that is not equal; None when all that both hold is."""
    for step in sorted({record.step for _, record in once.step_records()}):
        found = compare_runs(once, again, options=Options(budget=1.0, is_wanted=step.__eq__))
        unequal = [row for row in found.rows if row.verdict != "equal" and _is_apart(row)]
        if unequal:
            return min(unequal, key=lambda row: (row.microbatch, row.order))
    return None


def _is_apart(row: RowComparison) -> bool:
    return row.distance is not None and row.distance.relative != 0.0
