"""A smaller loss scale: for gradients that overflow only because they are multiplied by it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from hypocenter.diagnose.evidence import Evidence
from hypocenter.replay.remedies.kinds import RemedyKind

MAX_HALVINGS = 24  # GradScaler starts at 2**16 and DeepSpeed at 2**32: below 2**-8 of either nothing is left to try


def applies(evidence: Evidence | None) -> bool:
    """Return whether it may help: to a finite forward whose gradients were scaled by more than 1."""
    if evidence is None:
        return True
    return evidence.forward_finite and (evidence.loss_scale or 1.0) > 1.0


def seed_scales(loss_scale: float) -> Sequence[float]:
    """Return factors on the loss scale, by halves as a scaler does, down to a loss scale of 1, at most 24."""
    n = min(MAX_HALVINGS, max(1, math.ceil(math.log2(max(loss_scale, 2.0)))))
    return tuple(2.0**-i for i in range(1, n + 1))


def text(targets: Sequence[str]) -> str:
    """Say the change in words."""
    return (
        "use a smaller loss scale (GradScaler(init_scale=...), with growth_interval raised so that it stays there); "
        "small gradients of all other layers lose as many bits"
    )


KIND = RemedyKind(
    name="lower-scale",
    order=3,
    applies=applies,
    around=lambda modules: contextlib.nullcontext(),
    text=text,
    seed_scales=seed_scales,
    takes_modules=False,
)
