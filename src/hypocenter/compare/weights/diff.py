"""Two checkpoints in, one answer out: which tensors are the same, to the bit, after a cast, or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hypocenter.compare.comparison import Layout, Pair, SiteCard, Verdict
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.compare.weights.checkpoint import Checkpoint
from hypocenter.compare.weights.differ import Difference, compare
from hypocenter.compare.weights.lay import lay
from hypocenter.compare.weights.match import match_checkpoints

ULP = 1  # of the coarser format: two roundings of the same number


def diff_checkpoints(
    baseline: Checkpoint, candidate: Checkpoint, manual: ManualMap | None = None, *, ulp: int = ULP
) -> WeightsComparison:
    """Compare all tensors that can be paired. What is left over on one side is never "the same".

    Args:
        manual: pairs that win.
        ulp: so many units in the last place of the coarser format count as agreement.

    Raises:
        CheckpointError: a file is damaged.
    """
    matched = match_checkpoints(baseline, candidate, manual)
    rows = tuple(row for pair in matched.matching.pairs for row in _compared(pair, baseline, candidate, ulp))
    found = WeightsComparison(
        baseline=_side(baseline),
        candidate=_side(candidate),
        tensors=rows,
        unmatched_baseline=_left(matched.matching.unmatched_baseline),
        unmatched_candidate=_left(matched.matching.unmatched_candidate),
        ignored=matched.negligible,
        notes=matched.matching.notes,
    )
    status = _status(found)
    return replace(found, status=status, sentence=_sentence(found, status))


def _compared(pair: Pair, baseline: Checkpoint, candidate: Checkpoint, ulp: int) -> Iterator[TensorComparison]:
    for laid in lay(pair, baseline, candidate):
        if laid.view is None:
            why = (
                "shapes do not fit"
                if len(pair.baseline) == len(pair.candidate)
                else "the order of the parts is unknown"
            )
            found = Difference(verdict="cannot-tell", n=laid.target.n, why=why)
        else:
            found = compare(laid.view, laid.target, ulp=ulp)
        names = tuple(spot.site for spot in pair.baseline)
        yield TensorComparison(
            baseline=names, candidate=laid.name, by=pair.by, why=pair.why, certainty=pair.certainty,
            layout=pair.layout, dtypes=(baseline.tensors[names[0]].dtype, laid.target.dtype),
            shape=candidate.tensors[laid.name].shape, difference=found,
        )  # fmt: skip


def _side(checkpoint: Checkpoint) -> Side:
    return Side(
        path=str(checkpoint.path), kind=checkpoint.kind, n_tensors=len(checkpoint.tensors),
        n_bytes=checkpoint.n_bytes, notes=checkpoint.notes,
    )  # fmt: skip


def _left(cards: Sequence[SiteCard]) -> tuple[Unmatched, ...]:
    return tuple(Unmatched(name=card.spot.site, dtype=card.dtype, shape=card.shape) for card in cards)


def _status(found: WeightsComparison) -> Verdict:
    verdicts = {row.difference.verdict for row in found.tensors}
    if "differs" in verdicts:
        return "diverged"
    if not verdicts or "cannot-tell" in verdicts or found.unmatched_baseline or found.unmatched_candidate:
        return "cannot-tell"
    return "same"


def _sentence(found: WeightsComparison, status: Verdict) -> str:
    n = Counter(row.difference.verdict for row in found.tensors)
    total = len(found.tensors)
    left = len(found.unmatched_baseline), len(found.unmatched_candidate)
    tail = f"; {left[0]} tensors unmatched in the baseline, {left[1]} in the candidate" if any(left) else ""
    if not total:
        return f"cannot tell: no tensor of one checkpoint is in the other{tail}"
    if status == "diverged":
        worst = max((row for row in found.tensors if row.difference.verdict == "differs"), key=_size)
        first = next(row for row in found.tensors if row.difference.verdict == "differs")
        size = f"{worst.difference.relative_l2:.2g}"
        also = "" if first is worst else f", first {first.candidate}"
        return f"differ: {n['differs']} of {total} tensors, most {worst.candidate} (relative L2 {size}){also}{tail}"
    kinds = [f"{n['equal']} equal to the bit"] if n["equal"] else []
    kinds += [f"{n['equal-after-cast']} after a cast"] if n["equal-after-cast"] else []
    kinds += [f"{n['within-ulp']} within ulps"] if n["within-ulp"] else []
    kinds += [f"{n['cannot-tell']} not comparable"] if n["cannot-tell"] else []
    head = "same" if status == "same" else "cannot tell"
    return f"{head}: {total} tensors, {', '.join(kinds)}{tail}"


def _size(row: TensorComparison) -> float:
    size = row.difference.relative_l2
    return size if size == size else float("inf")


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
