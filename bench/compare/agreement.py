"""Whether sketches say what the values say: the same two recordings compared at both depths."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from hypocenter.compare.comparison import Comparison, Pair, RowVerdict, Verdict
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.record.reader import RecordedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What both depths say of a pair of runs."""

    by_sketches: Comparison
    by_values: Comparison
    sketch_seconds: float
    value_seconds: float
    n_rows: int  # worst rows of pairs that were compared by both
    n_rows_agree: int  # with the same verdict

    @property
    def statuses(self) -> tuple[Verdict, Verdict]:
        """By sketches, by values."""
        return self.by_sketches.status, self.by_values.status

    @property
    def same_status(self) -> bool:
        """Whether both come to the same verdict."""
        return self.by_sketches.status == self.by_values.status

    @property
    def same_place(self) -> bool:
        """Whether both blame the same place, or both nobody."""
        return _place(self.by_sketches) == _place(self.by_values)


def agreement(baseline: RecordedRun, candidate: RecordedRun, options: Options | None = None) -> Agreement:
    """Compare at depth sketch and at depth tensor; both recordings must hold sketches and values."""
    options = options or Options()
    found: list[Comparison] = []
    seconds: list[float] = []
    for use_values in (False, True):
        began = time.perf_counter()
        found.append(compare_runs(baseline, candidate, options=replace(options, use_values=use_values)))
        seconds.append(time.perf_counter() - began)
    rows = [_verdicts(one) for one in found]
    both = rows[0].keys() & rows[1].keys()
    return Agreement(
        by_sketches=found[0], by_values=found[1], sketch_seconds=seconds[0], value_seconds=seconds[1],
        n_rows=len(both), n_rows_agree=sum(rows[0][pair] == rows[1][pair] for pair in both),
    )  # fmt: skip


def _verdicts(found: Comparison) -> dict[Pair, RowVerdict]:
    """Whether a row is beyond noise; equal and within noise are one answer."""
    return {row.pair: "within-noise" if row.verdict == "equal" else row.verdict for row in found.rows}


def _place(found: Comparison) -> tuple[object, ...] | None:
    first = found.first
    return (first.step, first.phase, first.site, first.port) if first is not None else None
