"""The optimizer's eps is zero in the parameter's format.

What it means
    Adam divides by sqrt(v) + eps. In float16 an eps of 1e-8 rounds to 0 (the smallest float16 is 6e-8), so a
    coordinate that never had a gradient, with v = 0, gives 0 / 0 = NaN in the update, although every gradient
    is finite.

How it is decided
    The parameter became non-finite in the optimizer step with finite gradients, eps rounded to the format of
    the parameter is 0 while eps is not, and v is 0 at the bad coordinates. Recomputing the update makes it
    proven, else it is likely.

What to do
    Raise eps to 1e-4 or more for float16, or keep parameters and optimizer state in float32 (master weights).

When it is wrong
    When the state itself was already NaN: then an earlier step broke it.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.verdicts import cause


@cause("optimizer-eps-underflow", order=30)
def decide(evidence: Evidence) -> Verdict | None:
    """eps is not 0, its rounding is, and v is 0 where the parameter went bad."""
    facts = evidence.optimizer
    eps, rounded = facts.get("eps"), facts.get("eps_in_dtype")
    if evidence.trigger != "nonfinite-param" or not isinstance(eps, (int, float)) or eps <= 0 or rounded != 0:
        return None
    n_bad, n_zero = facts.get("n_bad"), facts.get("n_v_zero")
    if not isinstance(n_zero, (int, float)) or n_zero < 1:
        return None
    if evidence.float64.ran and not evidence.float64.finite:
        return None
    dtype = str(facts.get("state_dtype", "the optimizer state's format"))
    name = str(facts.get("class", "the optimizer"))
    total = f" of {n_bad:.0f}" if isinstance(n_bad, (int, float)) else ""
    return Verdict(
        cause="optimizer-eps-underflow",
        confidence="proven" if evidence.float64.ran else "likely",
        title=f"{name} divided by zero: eps {short(eps)} is 0 in {dtype}",
        why=(
            f"eps = {short(eps)} rounds to 0 in {dtype}",
            f"the second moment v is 0 at {n_zero:.0f}{total} bad coordinates: the update divides by 0",
            "all gradients were finite",
            *(("the same update in float64 is finite",) if evidence.float64.ran else ()),
        ),
        limit=float(eps),
        actual=0.0,
        advice="use eps >= 1e-4 in float16, or keep parameters and state in float32",
    )
