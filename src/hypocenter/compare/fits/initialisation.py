"""A parameter starts from other random numbers, or from another standard deviation.

What it means
    Another seed, another order of drawing, or another rule (such as the factor 1/sqrt(2 n_layers) of output layers).

How it is decided
    A parameter differs before the first step, of the same shape and format, and no other fit explains it. Its values
    are the baseline's times one factor: another standard deviation; or have nothing in common with them (the cosine is
    0 within the error of the sketch): other random numbers. How many parameters differ tells a layer from a seed.

What to do
    Load one checkpoint into both, or set the same seed before the model is made, on the same device.

When it is wrong
    A checkpoint of another training looks like another seed.
"""

from __future__ import annotations

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import is_at_start, is_shuffled
from hypocenter.compare.fitting import fit

_UNRELATED = 0.2  # cosine of two independent draws, as a sketch of 256 numbers estimates it: 3 deviations
_ALONG = 0.999  # cosine from which on one is the other times a factor
_ALL = 0.8  # of the parameters


@fit("initialisation")
def initialisation(case: Case) -> Fit | None:
    """Another draw, or another standard deviation."""
    row = case.row
    if row is None or not is_at_start(case) or not row.baseline.sumsq or not row.candidate.sumsq:
        return None
    distance = row.comparison.distance
    if distance is None or distance.cosine is None or row.baseline.dtype != row.candidate.dtype or is_shuffled(row):
        return None
    ratio = row.candidate.norm / row.baseline.norm
    if distance.cosine > _ALONG and abs(ratio - 1.0) > 1e-3:
        how = f"{ratio:.4g} times as large in the candidate, and otherwise the same"
    elif abs(distance.cosine) < _UNRELATED:
        how = f"other random numbers, of {ratio:.3g} times the standard deviation"
    else:
        return None
    return Fit(
        name="initialisation", cause="init-mismatch", explained=1.0, confidence="likely",
        text=f"{case.first.site} starts as {how}; {_how_many(case)}", values={"ratio": ratio},
        fix="load the same checkpoint into both, or draw parameters by the same rule from the same seed",
    )  # fmt: skip


def _how_many(case: Case) -> str:
    rows = [row for row in case.rows(phase="param", port="value") if row.baseline.n > 1]
    apart = [row for row in rows if row.comparison.verdict == "differs"]
    if len(apart) >= _ALL * len(rows):
        return "nearly all parameters differ: another seed or checkpoint"
    return "it is the only one" if len(apart) == 1 else f"{len(apart):,} of {len(rows):,} parameters differ"
