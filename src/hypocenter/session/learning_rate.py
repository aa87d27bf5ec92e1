"""The learning rate that a torch optimizer is about to use."""

from __future__ import annotations

from typing import Any

import torch


def learning_rate(optimizer: Any) -> float | None:
    """Of the first parameter group; None if it is nothing that is a number."""
    value = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if isinstance(value, (int, float)):
        return float(value)
    return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else None
