"""A step that failed, and what is known of it without a replay. For every framework."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hypocenter.diagnose.evidence import Evidence
from hypocenter.session.check import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A step whose loss or gradients are not finite."""

    step: int
    check: Check
    bad_params: tuple[str, ...]  # before any clipping spread them
    microbatches: tuple[Any, ...]
    healthy_steps: int  # that went before
    optimizer: Any = None  # None: no optimizer has been called, the step is skipped
    scale: float | None = None  # loss scale; None: there is no scaler
    clip: str = ""  # function that spread them; "" when nothing did
    is_loss_scaled: bool = False  # the losses carry the scale too


def plain_evidence(failed: Failed, rank: tuple[int, int], *, why_not: str = "") -> Evidence:
    """Return evidence of what the check itself saw, without a replay.

    Args:
        failed: the step.
        rank: (this rank, how many there are).
        why_not: why there is no replay.
    """
    trigger = "nonfinite-grad" if failed.check.loss_finite else "nonfinite-loss"
    losses = failed.check.losses
    return Evidence(
        id=f"step-{failed.step:06d}-{trigger}",
        trigger=trigger,
        step=failed.step,
        microbatch=next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), 0),
        rank=rank[0],
        world_size=rank[1],
        loss=losses[0] if losses and math.isfinite(losses[0]) else None,
        loss_scale=failed.scale,
        bad_params=failed.bad_params,
        n_params=len(failed.check.grad_norms),
        clip=failed.clip,
        why_not=why_not,
        forward_finite=failed.check.loss_finite,
        healthy_steps=failed.healthy_steps,
    )
