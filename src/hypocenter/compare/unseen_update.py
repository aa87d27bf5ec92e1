"""Where a forward is the first that differs and nothing tells of its parameters: was it their last update?"""

from __future__ import annotations

from dataclasses import replace

from hypocenter.compare.comparison import Comparison, Divergence
from hypocenter.compare.judged import Judged
from hypocenter.compare.updates.compare import compare_updates
from hypocenter.compare.updates.comparison import UpdateDifference
from hypocenter.record.reader import RecordedRun

_AFTER_AN_UPDATE = ("forward", "loss", "backward", "grad")


def or_an_unseen_update(
    found: Comparison, baseline: RecordedRun, candidate: RecordedRun, scene: Judged, *, is_start: bool
) -> Comparison:
    """The comparison, with the optimizer's step in place of what only followed from it.

    Level tensors keeps what optimizers do at each scheduled step, parameters as rows only now and then. Where rows
    of parameters are there they have been compared already, and nothing is looked at.

    Args:
        scene: the step of the first difference.
        is_start: no step was compared before it.
    """
    first = found.first
    if found.status != "diverged" or first is None or first.phase not in _AFTER_AN_UPDATE or is_start:
        return found
    if (scene.phase == "param").any():
        return found
    culprit = compare_updates(baseline, candidate, found.matching).first
    if culprit is None or culprit.step >= first.step:
        return found
    return _of_update(found, first, culprit)


def _of_update(found: Comparison, first: Divergence, culprit: UpdateDifference) -> Comparison:
    reason = culprit.reasons[0]
    followed = f"what followed first: {first.phase} of step {first.step}, {first.site} {first.port}".rstrip()
    tail = found.sentence.partition(";")[2]
    return replace(
        found,
        first=Divergence(
            step=culprit.step, microbatch=0, phase="optimizer", site=culprit.baseline, port="value",
            candidate_site=culprit.candidate, error=reason.effect, floor=0.0,
        ),
        sentence=f"diverged at step {culprit.step}, optimizer: {culprit.baseline} is updated by another rule"
        + (f";{tail}" if tail else ""),
        cause=reason.cause, confidence=reason.confidence, fit=None,
        why=(*(each.text for each in culprit.reasons), followed),
    )  # fmt: skip
