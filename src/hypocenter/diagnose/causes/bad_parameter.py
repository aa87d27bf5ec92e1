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
    return Verdict(
        cause="bad-parameter",
        confidence=supported(evidence),
        title=f"{kind} {name} held {kinds} before the step",
        why=(f"{name} {list(evidence.leaf.shape)} {evidence.leaf.dtype}: {chips}{first}",),
        advice="check the checkpoint, the initialisation and the last update that wrote it",
    )
