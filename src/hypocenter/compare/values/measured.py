"""Every pair whose values both runs hold, measured at every step and micro-batch: what `diff --values` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from hypocenter.compare.comparison import Comparison, LayoutKind, Pair, Spot, Verdict, stage_of
from hypocenter.compare.distances.tensor import TensorDistance, tensor_distance
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.values.depth import Depth
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.record.reader import RecordedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The distance of one pair at one step and micro-batch."""

    pair: Pair
    step: int
    microbatch: int
    dtypes: tuple[str, str]
    shape: tuple[int, ...]  # of the first part, as it lies in the baseline
    distance: TensorDistance


def measured(
    found: Comparison, baseline: RecordedRun, candidate: RecordedRun, is_wanted: Callable[[int], bool] | None = None
) -> Iterator[Measured]:
    """Yield the distances of all pairs in the order of steps, micro-batches and execution.

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


class Values(Struct, frozen=True, kw_only=True):
    """How far the values of two recordings of level tensors are apart. Pairs of counts are baseline, candidate."""

    schema: Literal["hypocenter.values/1"] = "hypocenter.values/1"
    status: Verdict
    sentence: str
    baseline: str
    candidate: str
    values: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(TensorDistance):
    """One pair at one step and micro-batch, and how far it is apart."""

    baseline: tuple[Spot, ...]
    candidate: tuple[Spot, ...]
    layout: LayoutKind
    step: int
    microbatch: int
    dtypes: tuple[str, str]
    shape: tuple[int, ...]


def values_of(found: Comparison, rows: Iterable[Measured]) -> Values:
    """Put together what was measured with what the comparison of the runs says."""
    return Values(
        status=found.status, sentence=found.sentence, baseline=found.baseline, candidate=found.candidate,
        values=tuple(map(_row, rows)),
    )  # fmt: skip


def _row(row: Measured) -> Row:
    distance = {name: getattr(row.distance, name) for name in TensorDistance.__dataclass_fields__}
    return Row(
        baseline=row.pair.baseline, candidate=row.pair.candidate, layout=row.pair.layout.kind, step=row.step,
        microbatch=row.microbatch, dtypes=row.dtypes, shape=row.shape, **distance,
    )  # fmt: skip
