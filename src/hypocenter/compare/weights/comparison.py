"""The answer of `hypocenter weights diff`, as frozen dataclasses. Serialised as `hypocenter.weights/1`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypocenter.compare.comparison import Layout, Verdict
from hypocenter.compare.weights.differ import Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One checkpoint."""

    path: str = ""
    kind: str = ""
    n_tensors: int = 0
    n_bytes: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorComparison:
    """One tensor of the candidate against what it is in the baseline."""

    baseline: tuple[str, ...]
    candidate: str
    by: str  # name of the matcher, or "tied"
    why: str
    certainty: float
    layout: Layout
    dtypes: tuple[str, str]
    shape: tuple[int, ...]  # of the candidate's
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """A tensor that only one side has."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsComparison:
    """Which tensors of two checkpoints are the same: to the bit, after a cast, within ulps, or not."""

    schema: Literal["hypocenter.weights/1"] = "hypocenter.weights/1"
    status: Verdict = "cannot-tell"
    sentence: str = ""
    baseline: Side = field(default_factory=Side)
    candidate: Side = field(default_factory=Side)
    tensors: tuple[TensorComparison, ...] = ()  # in the baseline's order
    unmatched_baseline: tuple[Unmatched, ...] = ()
    unmatched_candidate: tuple[Unmatched, ...] = ()
    ignored: tuple[str, ...] = ()  # buffers that are computed when a network is built
    notes: tuple[str, ...] = ()
