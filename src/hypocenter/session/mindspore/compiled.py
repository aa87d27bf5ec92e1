"""What a step that ran as one compiled graph returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.tap.mindspore.tape import tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The loss of a compiled step, and what a cell with loss scaling returns beside it."""

    loss: float | None = None
    skipped: bool = False
    scale: float | None = None
    scaler: str = ""


def outcome(cell: Any, outputs: Any) -> Outcome:
    """Read from what a training cell returned: its loss first, then of TrainOneStepWithLossScaleCell flag and scale."""
    loss = next((number for t in tensors(outputs) if (number := _number(t)) is not None), None)
    if not isinstance(cell, nn.TrainOneStepWithLossScaleCell) or not isinstance(outputs, tuple) or len(outputs) < 3:
        return Outcome(loss=loss)
    flag, scale = _number(outputs[1]), _number(outputs[2])
    manager = getattr(cell, "loss_scaling_manager", None)
    kind = type(manager if manager is not None else cell).__name__
    return Outcome(loss=loss, skipped=bool(flag), scale=scale, scaler=kind)


def _number(value: Any) -> float | None:
    """Return a number or the mean of a tensor, as a loss of several elements; None for anything else."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, ms.Tensor) and value.size:
        return float(value.asnumpy().astype("float64").mean())
    return None
