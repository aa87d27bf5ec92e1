"""`hypocenter.values/1`: how far the values of two recordings are apart, element by element."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from hypocenter.compare.comparison import Comparison, LayoutKind, Spot, Verdict
from hypocenter.compare.distances.tensor import TensorDistance
from hypocenter.compare.values.measured import Measured


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
    """What was measured, with what the comparison of the runs says."""
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
