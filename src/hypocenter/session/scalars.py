"""The numbers of a step as rows: loss, gradient norm, learning rate, loss scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hypocenter.nouns import Reading
from hypocenter.session.sentinel import Check, scalar_reading
from hypocenter.tap.scaled import ScalerState


def scalar_rows(
    check: Check,
    step: int,
    *,
    scale: float | None,
    norm: float | None,
    optimizer: Any,
    scaler: ScalerState | None,
    next_order: Callable[[], int],
) -> list[Reading]:
    """One row each; losses by micro-batch, with the loss scale taken out.

    Args:
        norm: of the gradients before clipping.
        scaler: None when there is none.
    """
    rows = [
        scalar_reading("loss", "loss", loss / (scale or 1.0), step, next_order(), number)
        for number, loss in enumerate(check.losses)
    ]
    rows.append(scalar_reading("grad_norm", "grad", norm or 0.0, step, next_order()))
    lr = learning_rate(optimizer)
    if lr is not None:
        rows.append(scalar_reading("lr", "optimizer", lr, step, next_order()))
    if scaler is not None:
        rows.append(scalar_reading("loss_scale", "scaler", scaler.scale, step, next_order(), module=scaler.kind))
    return rows


def learning_rate(optimizer: Any) -> float | None:
    """Of the first parameter group; None if it is nothing that is a number."""
    value = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else None
