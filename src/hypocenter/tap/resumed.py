"""Where a program that was started again goes on: how many updates its optimizer, loaded from a file, has made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

_INNER = ("optimizer", "base_optimizer", "chained_optimizers")
_AT_MOST = 64  # parameters that are asked


def steps_done(optimizer: Any) -> int | None:
    """Return how many updates an optimizer has made, by Adam's `step` and the like; None when it does not tell.

    To be asked before an update. One transfer where the count lies on a device.
    """
    counts: list[int] = []
    for state in _states(optimizer):
        step = state.get("step")
        if isinstance(step, torch.Tensor) and step.numel() == 1:
            counts.append(int(step.item()))
        elif isinstance(step, (int, float)) and not isinstance(step, bool):
            counts.append(int(step))
        if len(counts) >= _AT_MOST or (counts and isinstance(step, torch.Tensor) and step.device.type != "cpu"):
            break
    return max(counts, default=None)


def _states(optimizer: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if isinstance(optimizer, (list, tuple)):
        for each in optimizer:
            yield from _states(each, depth)
        return
    if isinstance(optimizer, torch.optim.Optimizer):
        yield from (state for state in optimizer.state.values() if isinstance(state, Mapping))
        yield from (group for group in optimizer.param_groups if "step" in group)  # apex and Megatron keep it there
    if depth < 4:
        for name in _INNER:
            inner = getattr(optimizer, name, None)
            if inner is not None and inner is not optimizer:
                yield from _states(inner, depth + 1)
