"""The number that a norm adds to the mean square before its root is another one.

What it means
    `eps` of a normalisation differs. With small activations the outputs are scaled by another factor in each row.

How it is decided
    The first place that differs is a module of which an attribute with "eps" in its name differs between the runs.
    When no attributes were recorded: the outputs differ by a factor a that follows from the mean square m of the
    inputs, a² = (m + e) / (m + e'), with e and e' two of the usual powers of ten.

What to do
    Set the same eps in both (config: rms_norm_eps, layer_norm_epsilon), then compare again.

When it is wrong
    When the module reads another setting than the attribute. The factor alone is only "possible", and says little of
    the smaller of the two numbers.
"""

from __future__ import annotations

import math

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import attributes_apart, say
from hypocenter.compare.fitting import fit

_USUAL = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_NEAR = 0.05  # relative, of the distance of the factor from 1


@fit("norm-eps")
def norm_eps(case: Case) -> Fit | None:
    """Another eps in the first module that differs."""
    if case.first.phase not in ("forward", "backward") or not case.inputs_agree:
        return None
    found = attributes_apart(case, ("eps",))
    if found:
        name, (mine, other) = next(iter(sorted(found.items())))
        return _answer(case, mine, other, "proven" if _is_norm(case) else "likely", name)
    if all(case.modules) or not _is_norm(case):
        return None
    guess = _from_factor(case)
    return _answer(case, *guess, "possible", "eps") if guess is not None else None


def _answer(case: Case, mine: float, other: float, confidence: str, name: str) -> Fit:
    return Fit(
        name="norm-eps", cause="config-mismatch", explained=1.0, confidence=confidence,  # type: ignore[arg-type]
        text=f"{name} of {case.first.site} is {say(mine)} in the baseline and {say(other)} in the candidate",
        values={"baseline": mine, "candidate": other}, fix="set the same eps on both sides",
    )  # fmt: skip


def _is_norm(case: Case) -> bool:
    row = case.row
    card = case.card(row, side=0) if row is not None else None
    return "norm" in (card.module if card is not None else "").lower() or "norm" in case.first.site.lower()


def _from_factor(case: Case) -> tuple[float, float] | None:
    row = case.row
    distance = row.comparison.distance if row is not None else None
    if row is None or distance is None or distance.scale is None or not case.inputs or distance.scale <= 0:
        return None
    given = case.inputs[0].baseline
    mean_square = given.sumsq / given.n if given.n else math.nan
    off = {
        (mine, other): abs(math.sqrt((mean_square + mine) / (mean_square + other)) - distance.scale)
        for mine in _USUAL
        for other in _USUAL
        if mine != other
    }
    best = min(off, key=lambda pair: off[pair])
    return best if off[best] < _NEAR * abs(distance.scale - 1.0) else None
