"""Loss and grad norm of two recordings, ready to be drawn, however short they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hypocenter.compare.curves.align import align
from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.compare.curves.compare import POINTS, compare_curves
from hypocenter.compare.curves.comparison import CurveComparison, Limits, Track
from hypocenter.compare.curves.curve import Curve, Values
from hypocenter.compare.curves.evidence import FEWEST, gather
from hypocenter.errors import HypocenterError

NAMES = {"loss": "loss", "grad_norm": "grad norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCurves:
    """One quantity of both runs."""

    name: str
    found: CurveComparison  # its track holds this quantity


def curves_of_runs(baseline: Path, candidate: Path, noise: Sequence[Path] = ()) -> tuple[NamedCurves, ...]:
    """Loss and grad norm where both runs recorded them at two steps or more."""
    try:
        mine, other = read_curve(baseline), read_curve(candidate)
        return drawn(mine, other, [read_curve(path) for path in noise])
    except HypocenterError:
        return ()


def drawn(mine: Curve, other: Curve, repeats: Sequence[Curve] = ()) -> tuple[NamedCurves, ...]:
    """The same of curves that were read: of a baseline, a candidate, and repeats of the baseline."""
    return tuple(_drawn(compare_curves(mine, other, repeats), mine, other, repeats))


def _drawn(found: CurveComparison, mine: Curve, other: Curve, repeats: Sequence[Curve]) -> Iterator[NamedCurves]:
    for name, shown in NAMES.items():
        left, right = mine.series.get(name), other.series.get(name)
        if left is None or right is None:
            continue
        pair = align(left, right, offset=found.offset).finite()
        n = len(pair.steps)
        if n < 2:
            continue
        evidence = gather(name, mine, other, repeats, Limits(), found.offset)
        floor = np.zeros(n)
        if evidence is not None and len(evidence.pair.steps) == n:
            size = pair.baseline if name == "grad_norm" else np.ones(n)  # of its logarithm: a share
            first = np.full(n - len(evidence.floor), evidence.floor[0])
            floor = np.concatenate((first, evidence.floor)) * size
        at = np.unique(np.linspace(0, n - 1, min(n, POINTS)).astype(int))
        track = Track(
            steps=tuple(int(step) for step in pair.steps[at]), baseline=_plain(pair.baseline[at]),
            candidate=_plain(pair.candidate[at]), difference=_plain((pair.candidate - pair.baseline)[at]),
            floor=_plain(floor[at]),
        )  # fmt: skip
        says = f"{shown}: {n:,} steps, too few to tell what is noise ({FEWEST} are needed)"
        if n >= FEWEST:
            says = found.sentence if name == "loss" else f"{shown} over {n:,} steps"
        departure = found.departure if found.departure is not None and found.departure.series == name else None
        yield NamedCurves(name=shown, found=replace(found, sentence=says, departure=departure, track=track))


def _plain(values: Values) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
