"""A parameter that learned before gets a gradient of exactly zero.

What it means
    Nothing flows back to the parameter any more: a unit that is off for every sample, a saturated function, a
    value cut off by detach or a mask. There is no NaN; training goes on and this part of the model stands
    still.

How it is decided
    The gradient of named parameters is exactly zero in a step, after steps in which it was not, and the replay
    found no overflow that would explain it. From structure only: likely when the replay shows it again, else
    possible.

What to do
    Look at what the parameter feeds: dead activations, saturated sigmoids, an all-zero mask, a frozen branch.

When it is wrong
    Embedding rows of absent tokens, idle experts and parameters of a branch that a step does not take have zero
    gradients in healthy training.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.verdicts import cause


@cause("dead-gradient", order=300)
def decide(evidence: Evidence) -> Verdict | None:
    """Exact zeros, and no overflow behind them."""
    if evidence.trigger != "dead-grad" or evidence.origin is not None or not evidence.bad_params:
        return None
    names = ", ".join(evidence.bad_params[:4]) + (", …" if len(evidence.bad_params) > 4 else "")
    n = len(evidence.bad_params)
    return Verdict(
        cause="dead-gradient",
        confidence="likely" if evidence.replayed and evidence.reproduced else "possible",
        title=f"the gradient of {n} parameter{'s' if n > 1 else ''} became exactly zero",
        why=(f"{names}: every element of the gradient is 0", f"{evidence.healthy_steps} steps before it was not"),
        advice="look for dead units, saturation or a mask between this parameter and the loss",
    )
