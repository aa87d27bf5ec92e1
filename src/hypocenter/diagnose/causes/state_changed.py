"""Parameters or buffers became far larger than they were.

What it means
    The loss or a gradient jumped because the model is another one than in the steps before: an update that was too
    large, a learning rate that was raised, weights that were loaded or written to.

How it is decided
    Walking back from what jumped, all that is larger than usual comes from this parameter or buffer; healthy steps that
    were traced before tell what is usual.

What to do
    Look at the updates just before: the learning rate, the size of the gradient, what wrote to the parameter (a change
    between two updates is told by HC231).

When it is wrong
    When the weights are meant to grow: a warm-up from small values.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.rulings import fact
from hypocenter.diagnose.spike_words import jumped, sizes, times
from hypocenter.diagnose.verdicts import cause


@cause("state-changed", order=37, of_spikes=True)
def decide(evidence: Evidence) -> Verdict | None:
    """It was large before the step."""
    size, usual = fact(evidence, "size"), fact(evidence, "usual_size")
    if evidence.leaf is None or evidence.leaf_kind not in ("param", "buffer") or not size or not usual:
        return None
    return Verdict(
        cause="state-changed",
        confidence="proven",
        title=f"{why.leaf_name(evidence)} is {times(size / usual)} larger than it was",
        why=(jumped(evidence), *sizes(evidence)),
        limit=usual,
        actual=size,
        advice="look at the updates just before this step: learning rate, gradient, what wrote to it",
    )
