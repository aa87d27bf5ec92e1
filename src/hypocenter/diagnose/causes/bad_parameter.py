"""A parameter or buffer was not finite before the step.

What it means
    The model carried NaN or infinity into the step: a checkpoint that was saved broken, an initialisation that
    divides by zero, a running statistic that was updated with a bad batch, a manual write.

How it is decided
    Walking back from the bad value ends at a parameter or buffer of the model, not at an operation. The replay
    shows it: proven.

What to do
    Go back to the step or file that wrote it: check the checkpoint, the initialisation, the last update. For
    running statistics reset them.

When it is wrong
    When an earlier step of this run made the parameter bad: that step's finding is the cause, and this one is
    folded into it.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.rulings import supported
from hypocenter.diagnose.verdicts import cause


@cause("bad-parameter", order=40)
def decide(evidence: Evidence) -> Verdict | None:
    """Not finite before any operation, in the model itself."""
    if evidence.leaf is None or evidence.leaf_kind not in ("param", "buffer"):
        return None
    kind = "parameter" if evidence.leaf_kind == "param" else "buffer"
    name = evidence.leaf.name
    kinds = " and ".join(chip.split(" ")[0] for chip in evidence.chips) or "non-finite values"
    chips = ", ".join(evidence.chips) or "non-finite values"
    first = f", first at {list(evidence.indices[0])}" if evidence.indices else ""
    writer, when = _last_writer(evidence)
    return Verdict(
        cause="bad-parameter",
        confidence=supported(evidence),
        title=f"{kind} {name} held {kinds} {when}",
        why=(f"{name} {list(evidence.leaf.shape)} {evidence.leaf.dtype}: {chips}{first}", *writer),
        advice="check the checkpoint, the initialisation and the last update that wrote it",
    )


def _last_writer(evidence: Evidence) -> tuple[tuple[str, ...], str]:
    """Return what is known of who wrote the parameter last, and how to say when it was not finite."""
    facts = evidence.facts
    step = facts.get("last_update_step")
    if evidence.leaf is None or facts.get("bad_parameter") != evidence.leaf.name or not isinstance(step, (int, float)):
        return (), "before the step"
    if facts.get("written_since"):
        return (
            f"something else than an optimizer has written to it since the update of step {step:.0f}",
        ), "before the step"
    why = f"the update of step {step:.0f} was the last to write it; the gradients of that were finite"
    return (why,), "before this update" if step == evidence.step else "before the step"
