"""Modules were in another mode, training or evaluation, than in the steps before.

What it means
    The loss or a gradient jumped because the model computed something else: a norm used statistics that it had kept
    instead of those of the batch, dropout was on or off. Often `model.train()` is missing after an evaluation.

How it is decided
    Healthy steps that were traced before had these modules in the other mode. With them in that mode, the step done
    again is as usual.

What to do
    Call `model.train()` before the training step, and `model.eval()` only around an evaluation.

When it is wrong
    When the model is frozen on purpose from this step on. Where modules in the other mode are around it, as around
    norms that are frozen after some epochs, it is a note.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.rulings import fact
from hypocenter.diagnose.spike_words import jumped, what_jumped
from hypocenter.diagnose.verdicts import cause
from hypocenter.in_words import counted


@cause("mode-switched", order=24, of_spikes=True)
def decide(evidence: Evidence) -> Verdict | None:
    """In the other mode the step is as usual."""
    n, without = fact(evidence, "n_switched"), fact(evidence, "without")
    if not n or without is None:
        return None
    module, mode = evidence.facts.get("switched") or "the model", evidence.facts.get("mode", "")
    more = f" and {counted(int(n) - 1, 'other module')}" if n > 1 else ""
    other = "training" if mode == "evaluation" else "evaluation"
    return Verdict(
        cause="mode-switched",
        confidence="likely" if fact(evidence, "n_within_others") == n else "proven",  # a part is frozen on purpose
        title=f"{module}{more} ran in {mode} mode, in the steps before in {other} mode",
        why=(*jumped(evidence), f"done again in {other} mode, {what_jumped(evidence)} is {short(without)}"),
        advice="call model.train() before the training step",
    )
