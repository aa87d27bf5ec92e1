"""Loss, grad norm and learning rate of two curves, ready to be drawn, however short they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hypocenter.compare.curves.align import align
from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.compare.curves.compare import POINTS, compare_curves
from hypocenter.compare.curves.comparison import CurveComparison, Departure, Limits, Schedule, Track
from hypocenter.compare.curves.curve import Curve, Values
from hypocenter.compare.curves.evidence import FEWEST, gather
from hypocenter.errors import HypocenterError

NAMES = {"loss": "loss", "grad_norm": "grad norm", "lr": "learning rate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCurves:
    """The curves of one quantity of both runs, for a chart."""

    name: str
    found: CurveComparison  # its track holds this quantity


def curves_of_runs(baseline: Path, candidate: Path, noise: Sequence[Path] = ()) -> tuple[NamedCurves, ...]:
    """Return loss, grad norm and learning rate where both runs recorded them at two steps; () when unreadable."""
    try:
        mine, other = read_curve(baseline), read_curve(candidate)
        return drawn(mine, other, [read_curve(path) for path in noise])
    except HypocenterError:
        return ()


def drawn(mine: Curve, other: Curve, repeats: Sequence[Curve] = ()) -> tuple[NamedCurves, ...]:
    """Compare curves that were read (`repeats` are of the baseline) and return those that can be drawn."""
    return drawn_as(compare_curves(mine, other, repeats), mine, other, repeats)


def drawn_as(
    found: CurveComparison, mine: Curve, other: Curve, repeats: Sequence[Curve] = ()
) -> tuple[NamedCurves, ...]:
    """Return the curves that can be drawn, of a comparison that is already there."""
    return tuple(_drawn(found, mine, other, repeats))


def _drawn(found: CurveComparison, mine: Curve, other: Curve, repeats: Sequence[Curve]) -> Iterator[NamedCurves]:
    for name, shown in NAMES.items():
        left, right = mine.series.get(name), other.series.get(name)
        if left is None or right is None:
            continue
        pair = align(left, right, offset=found.offset).finite()
        n = len(pair.steps)
        if n < 2 or (name == "lr" and len({*pair.baseline, *pair.candidate}) == 1):  # one rate says nothing
            continue
        evidence = gather(name, mine, other, repeats, Limits(), found.offset) if name != "lr" else None
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
        says, departure = _said(found, name, n), found.departure
        if name == "lr":
            departure = _other_schedule(found.schedule)
        yield NamedCurves(name=shown, found=replace(found, sentence=says, departure=departure, track=track))


def _said(found: CurveComparison, name: str, n: int) -> str:
    """Return the title of the chart of a quantity that has `n` steps."""
    if name == "lr" and found.schedule is not None and found.schedule.kind != "not-compared":
        return found.schedule.text
    if name == "loss" and n >= FEWEST:
        return found.sentence
    few = f": too few to tell what is noise ({FEWEST} are needed)" if n < FEWEST and name != "lr" else ""
    return f"{NAMES[name]} over {n:,} steps{few}"


def _other_schedule(found: Schedule | None) -> Departure | None:
    """Return where two learning rates first differ, as a departure that a chart marks; None when they do not."""
    if found is None or found.step is None:
        return None
    return Departure(series="lr", step=found.step, seen_step=found.step, until=None, gap=0.0, floor=0.0)


def _plain(values: Values) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
