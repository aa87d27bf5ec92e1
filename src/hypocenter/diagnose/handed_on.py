"""Whether evidence shows a value that another stage of a pipeline has handed on."""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence


def from_before(evidence: Evidence) -> bool:
    """Return whether a stage's input was bad: an argument of its call, or a tensor that Megatron-Core put there."""
    is_forward = evidence.origin is None or evidence.origin.phase == "forward"
    return evidence.leaf is not None and evidence.leaf_kind in ("batch", "external") and is_forward


def from_behind(evidence: Evidence) -> bool:
    """Return whether a bad gradient came into backward that no operation or hook of this rank made."""
    origin = evidence.origin
    if origin is None or evidence.leaf is None or evidence.leaf_kind != "external":
        return False
    return origin.phase == "backward" and "AccumulateGrad" not in origin.node


def is_received(evidence: Evidence) -> bool:
    """Return whether the value came from another stage for certain: from before or from behind."""
    return (evidence.is_handed_in and from_before(evidence)) or from_behind(evidence)
