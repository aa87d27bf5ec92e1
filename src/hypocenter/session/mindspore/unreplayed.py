"""Evidence of a failed step without a replay: what the check itself saw."""

from __future__ import annotations

import math

from hypocenter.diagnose.evidence import Evidence
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.mindspore.seams import Context, Failed, Investigator


class Unreplayed(Investigator):
    """Stands in where nothing can be replayed."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._n_written = 0

    def investigate(self, failed: Failed) -> str:
        """The first steps that failed, as they were seen; what a loss scaler skips is its business."""
        is_scaled_skip = failed.scale is not None and failed.check.loss_finite
        if self._n_written >= self.context.config.max_replays or is_scaled_skip:
            return ""
        self._n_written += 1
        evidence = plain_evidence(failed, self.context, why_not="this step cannot be replayed")
        problem = write_evidence(self.context.rank_directory() / "bundles", evidence)
        if problem:
            self.context.warn(f"the evidence cannot be written: {problem}")
        return evidence.id


def plain_evidence(failed: Failed, context: Context, *, why_not: str) -> Evidence:
    """What is known without a replay."""
    rank, world_size = context.rank()
    trigger = "nonfinite-grad" if failed.check.loss_finite else "nonfinite-loss"
    losses = failed.check.losses
    return Evidence(
        id=f"step-{failed.step:06d}-{trigger}",
        trigger=trigger,
        step=failed.step,
        microbatch=next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), 0),
        rank=rank,
        world_size=world_size,
        loss=losses[0] if losses and math.isfinite(losses[0]) else None,
        loss_scale=failed.scale,
        bad_params=failed.bad_params,
        n_params=len(failed.check.grad_norms),
        clip=failed.clip,
        why_not=why_not,
        forward_finite=failed.check.loss_finite,
        healthy_steps=failed.healthy_steps,
    )
