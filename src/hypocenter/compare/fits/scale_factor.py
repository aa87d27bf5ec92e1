"""The candidate's values are the baseline's times one number: a scale that one of the two leaves out.

What it means
    A multiplication or division is missing, is done twice, or is by another number: embeddings, scores of attention,
    branches, logits, losses, gradients.

How it is decided
    A setting of the module whose own code the difference comes from, named after a scale, differs. Or, from the
    sketches (or a scalar): alpha = ⟨candidate, baseline⟩ / ⟨baseline, baseline⟩ leaves a residual of less than a tenth
    of the difference. The number is named when it is one that programs divide or multiply by: powers of two, square
    roots of widths, the size of an axis of ranks. Unnamed it is only "possible".

What to do
    Look for this number on one side only.

When it is wrong
    A norm's eps, or 1 + weight, scale outputs nearly by one factor too; what says more than a factor goes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.axes import OUTER_FIRST
from hypocenter.compare.case import Case, PairedRow
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import attributes_apart, is_at_start, say
from hypocenter.compare.fitting import fit

_CLOSE = 1e-3  # relative: a known quantity is named when the factor is this near to it
_LEFT = 0.02  # of the candidate's square that may be something else than the baseline's direction
_ONE = 1e-6  # a factor this near to 1 is no factor
_SETTINGS = ("scal", "multiplier", "norm_factor")  # how settings that scale are called
_SIZES = frozenset(
    {
        "hidden_size",
        "d_model",
        "n_embd",
        "embed_dim",
        "head_dim",
        "d_kv",
        "key_value_proj_dim",
        "num_hidden_layers",
        "n_layer",
        "num_layers",
    }
)


@fit("scale-factor")
def scale_factor(case: Case) -> Fit | None:
    """One factor between both sides of the first difference."""
    row = case.row
    if (told := _told(case)) is not None:
        return told
    distance = row.comparison.distance if row is not None else None
    if is_at_start(case) or case.first.phase == "optimizer":
        return None  # a parameter larger from the start is initialisation's; rates and moments scale by what was set
    if row is None or distance is None or distance.scale is None or abs(distance.scale - 1.0) < _ONE:
        return None
    explained = _explained(row, distance.scale)
    if explained is None:
        return None
    alpha = distance.scale
    known = next((name for value, name in _known(case) if math.isclose(alpha, value, rel_tol=_CLOSE)), "")
    is_scalar = row.baseline.n == 1  # any two numbers are apart by a factor: only a known one says something
    if is_scalar and not known:
        return None
    named = f" = {known}" if known else ""
    return Fit(
        name="scale-factor", cause="implementation-mismatch", explained=explained,
        confidence="likely" if known else "possible", values={"factor": alpha, "known": known},
        text=f"the candidate's values are the baseline's times {alpha:.6g}{named}",
        fix="look for a division or multiplication by this number on one side only",
    )  # fmt: skip


def _told(case: Case) -> Fit | None:
    """Return the fit when the module's own code differs and one of its settings that scale does; else None."""
    if case.first.phase not in ("forward", "loss") or not case.inputs_agree or case.first.between is None:
        return None
    found = attributes_apart(case, _SETTINGS)
    if len(found) != 1:
        return None
    name, (mine, other) = next(iter(found.items()))
    return Fit(
        name="scale-factor", cause="config-mismatch", explained=1.0, confidence="proven",
        text=f"{name} of {case.first.site or 'the model'} is {say(mine)} in the baseline and {say(other)} in the "
        "candidate", values={"baseline": mine, "candidate": other}, fix=f"set the same {name} on both sides",
    )  # fmt: skip


def _explained(row: PairedRow, alpha: float) -> float | None:
    """Return 1 - ‖candidate - alpha baseline‖² / ‖candidate - baseline‖² from sketches; 1 of scalars, None unknown."""
    if row.baseline.n == 1 and row.candidate.n == 1:
        return 1.0
    a, b = row.baseline.sketch, row.candidate.sketch
    if a is None or b is None:
        return None
    a, b = a.astype(float), b.astype(float)
    difference, left = float(((b - a) ** 2).sum()), float(((b - alpha * a) ** 2).sum())
    if not difference or left > _LEFT * float((b**2).sum()):  # a candidate that is small has little to be left either
        return None
    return 1.0 - left / difference


def _roots(case: Case) -> Iterator[tuple[float, str]]:
    """Yield square roots of sizes that embeddings, scores and branches are scaled by, and their names."""
    for name, value in sorted(_sizes(case).items()):
        yield math.sqrt(value), f"the square root of {name}"
        if "layer" in name:
            yield math.sqrt(2.0 * value), f"the square root of 2 {name}"


def _sizes(case: Case) -> dict[str, int]:
    facts = case.facts[0]
    found: dict[str, int] = {}
    for module in facts.modules if facts is not None else ():
        for name, value in module.attributes.items():
            if name.removeprefix("config.") in _SIZES and isinstance(value, int) and value > 1:
                found.setdefault(name.removeprefix("config."), value)
    return found


def _known(case: Case) -> Iterator[tuple[float, str]]:
    """Yield numbers that programs scale by, and their inverses, with their names."""
    quantities: list[tuple[float, str]] = [(root, name) for root, name in _roots(case)]
    for run, places in zip(case.runs, case.places, strict=True):
        for axis in OUTER_FIRST:
            sizes = {len(place.groups.get(axis, ())) for place in places.values()} - {0, 1}
            quantities += [(float(n), f"the size of {axis}") for n in sorted(sizes)]
        quantities += [(float(run.world_size), "the number of ranks")] if run.world_size > 1 else []
    for value, name in quantities:
        yield value, name
        yield 1.0 / value, f"1 / {name}"
    for exponent in (*range(-3, 4), 8, -8, 16, -16):
        if exponent:
            yield 2.0**exponent, f"2^{exponent}"
    yield -1.0, "a change of sign"
