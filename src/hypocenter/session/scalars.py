"""The numbers of a step as rows: loss, gradient norm, learning rate, loss scale. For every framework."""

from __future__ import annotations

from collections.abc import Callable

from hypocenter.nouns import Reading
from hypocenter.session.check import Check, scalar_reading


def scalar_rows(
    check: Check,
    step: int,
    *,
    scale: float | None,
    norm: float | None,
    lr: float | None,
    scaler: tuple[float, str] | None,
    next_order: Callable[[], int],
) -> list[Reading]:
    """One row each; losses by micro-batch, with the loss scale taken out.

    Args:
        scale: that the losses carry; None: none.
        norm: of the gradients before clipping.
        lr: learning rate of the first group; None when it is nothing that is a number.
        scaler: (its scale, its class name); None when there is none.
    """
    rows = [
        scalar_reading("loss", "loss", loss / (scale or 1.0), step, next_order(), number)
        for number, loss in enumerate(check.losses)
    ]
    rows.append(scalar_reading("grad_norm", "grad", norm or 0.0, step, next_order()))
    if lr is not None:
        rows.append(scalar_reading("lr", "optimizer", lr, step, next_order()))
    if scaler is not None:
        rows.append(scalar_reading("loss_scale", "scaler", scaler[0], step, next_order(), module=scaler[1]))
    return rows
