"""Parameters or buffers became far larger than they were.

What it means
    The loss or a gradient jumped because the model is another one than in the steps before: an update that was too
    large, a learning rate that was raised, weights that were loaded or written to.

How it is decided
    Walking back from what jumped, all that is larger than usual comes from this parameter or buffer; healthy steps that
    were traced before tell what is usual. It is proven if the step does not jump with it at its usual size. Where
    nothing else is found, a learning rate that rose just before is likely.

What to do
    Look at the updates just before: the learning rate, the size of the gradient, what wrote to the parameter (a change
    between two updates is told by HC231).

When it is wrong
    When the weights are meant to grow: a warm-up from small values.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.rulings import fact
from hypocenter.diagnose.spike_words import grown, jumped, rate_rose, sizes, what_jumped
from hypocenter.diagnose.verdicts import cause

_ADVICE = "look at the updates just before this step: learning rate, gradient, what wrote to it"


@cause("state-changed", order=37, of_spikes=True)
def decide(evidence: Evidence) -> Verdict | None:
    """It was large before the step."""
    how = grown(evidence)
    if evidence.leaf is None and evidence.origin is None and not evidence.samples and (why_rate := rate_rose(evidence)):
        return Verdict(cause="state-changed", confidence="likely", title=why_rate, why=jumped(evidence), advice=_ADVICE)
    if evidence.leaf is None or evidence.leaf_kind not in ("param", "buffer") or not how:
        return None
    without = fact(evidence, "without")
    proof = f"done again with it at its usual size, {what_jumped(evidence)} is {short(without or 0.0)}"
    return Verdict(
        cause="state-changed",
        confidence="proven" if without is not None else "likely",
        title=f"{why.leaf_name(evidence)} holds values {how}",
        why=(*jumped(evidence), *sizes(evidence), *((proof,) if without is not None else ())),
        limit=fact(evidence, "usual_size"),
        actual=fact(evidence, "size"),
        advice=_ADVICE,
    )
