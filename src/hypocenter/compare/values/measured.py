"""Every pair whose values both runs hold, measured at every step and micro-batch: what `diff --values` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypocenter.compare.comparison import Comparison, Pair
from hypocenter.compare.distances.tensor import TensorDistance, tensor_distance
from hypocenter.compare.execution import stage_of
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.values.depth import Depth
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.record.reader import RecordedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One pair at one step and micro-batch."""

    pair: Pair
    step: int
    microbatch: int
    dtypes: tuple[str, str]
    shape: tuple[int, ...]  # of the first part, as it lies in the baseline
    distance: TensorDistance


def measured(
    found: Comparison, baseline: RecordedRun, candidate: RecordedRun, is_wanted: Callable[[int], bool] | None = None
) -> Iterator[Measured]:
    """In the order of steps, micro-batches and execution.

    Args:
        found: what `compare_runs` said of these runs; its pairs are measured.
        is_wanted: which steps of the baseline; all when not given.
    """
    values = Depth(
        baseline=RecordedValues(baseline), candidate=RecordedValues(candidate), shift=shift_between(baseline, candidate)
    )
    pairs = sorted(found.matching.pairs, key=lambda pair: stage_of(pair.baseline[0]))  # stable: in execution order
    for step, microbatch in values.baseline.batches():
        if is_wanted is not None and not is_wanted(step):
            continue
        for pair in pairs:
            if pair.baseline[0].phase in ("param", "grad") and microbatch != values.baseline.last_microbatch(step):
                continue
            views = values.views(pair, step, microbatch)
            if views:
                a, b = views[0]
                yield Measured(
                    pair=pair, step=step, microbatch=microbatch, dtypes=(a.dtype, b.dtype), shape=a.shape,
                    distance=tensor_distance(views),
                )  # fmt: skip
