"""The batch already held values that are not finite.

What it means
    NaN or infinity was in a tensor that the training loop gave to the model or the loss, before any operation.
    The model is healthy until it sees it.

How it is decided
    Walking back from the bad value ends at a tensor of the batch, not at an operation, neither of the model nor of
    what the program computed in this step before it called the model; the position is given. It is proven when the
    tensor is just as a DataLoader gave it. Else the program may have made it in another way: with NumPy, in an
    earlier step, or in more operations than are kept. A replay without the samples that is finite confirms them.

What to do
    Look at the named samples in the data set; filter or repair them, and check batches where they are made. Where
    no DataLoader gave the tensor, check it where the program makes it.

When it is wrong
    When the value is a code for "missing" that a mask was meant to remove: zero-times-inf and
    masked-gradient-trap name the masking instead, and are preferred.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.rulings import supported
from hypocenter.diagnose.verdicts import cause


@cause("bad-input", order=70)
def decide(evidence: Evidence) -> Verdict | None:
    """Not finite before any operation, in what the loop handed over."""
    if evidence.leaf is None or evidence.leaf_kind not in ("batch", "external"):
        return None
    from_batch = evidence.leaf_kind == "batch"
    if not from_batch and evidence.forward_finite and not evidence.killed_in_forward:
        return None  # it came in during backward: a hook on a gradient is the program's own code
    name = why.leaf_name(evidence)
    chips = ", ".join(evidence.chips) or "non-finite values"
    first = f", first at {list(evidence.indices[0])}" if evidence.indices else ""
    what = name if from_batch else f"{name}, a tensor from outside the model,"
    when = "as the DataLoader gave it" if evidence.is_from_loader else "before any operation"
    return Verdict(
        cause="bad-input",
        confidence=supported(evidence) if evidence.is_from_loader else "likely" if from_batch else "possible",
        title=f"{what} held {_kinds(evidence)} {when}",
        why=(f"{name} {list(evidence.leaf.shape)} {evidence.leaf.dtype}: {chips}{first}",),
        advice="filter or repair these samples where batches are made"
        if evidence.is_from_loader
        else f"look at how the program makes {name} before it calls the model",
    )


def _kinds(evidence: Evidence) -> str:
    return " and ".join(chip.split(" ")[0] for chip in evidence.chips) or "non-finite values"
