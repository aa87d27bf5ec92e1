"""The numbers of a step beside its tensors: loss, gradient norm, learning rate, loss scale. For every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypocenter.nouns import Phase, Reading
from hypocenter.session.check import Check, scalar_reading


class Scalar(NamedTuple):
    """Which number of a step it is."""

    site: str
    phase: Phase
    microbatch: int = 0
    module: str = ""  # class of what it is a number of: the loss scaler


_NORM, _RATE = Scalar("grad_norm", "grad"), Scalar("lr", "optimizer")
_LOSSES: list[Scalar] = []  # of micro-batches, as many as were asked for


def scalars_of(
    check: Check, *, scale: float | None, norm: float | None, lr: float | None, scaler: tuple[float, str] | None
) -> tuple[tuple[Scalar, ...], list[float]]:
    """Return which numbers a step has, and their values; losses are by micro-batch, without the loss scale.

    Args:
        scale: that the losses carry; None: none.
        norm: of the gradients before clipping.
        lr: learning rate of the first group; None when it is nothing that is a number.
        scaler: (its scale, its class name); None when there is none.
    """
    while len(_LOSSES) < len(check.losses):
        _LOSSES.append(Scalar("loss", "loss", len(_LOSSES)))
    kinds = _LOSSES[: len(check.losses)]
    values: list[float] = []
    for loss in check.losses:
        values.append(loss / (scale or 1.0))  # noqa: PERF401 (a comprehension is a call, at each step)
    kinds.append(_NORM)
    values.append(norm or 0.0)
    if lr is not None:
        kinds.append(_RATE)
        values.append(lr)
    if scaler is not None:
        kinds.append(Scalar("loss_scale", "scaler", module=scaler[1]))
        values.append(scaler[0])
    return tuple(kinds), values


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
    """Return the numbers of a step as one row each; for the arguments see `scalars_of`."""
    kinds, values = scalars_of(check, scale=scale, norm=norm, lr=lr, scaler=scaler)
    return [
        scalar_reading(kind.site, kind.phase, value, step, next_order(), kind.microbatch, kind.module)
        for kind, value in zip(kinds, values, strict=True)
    ]  # fmt: skip
