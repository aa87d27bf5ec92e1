"""The learning rate that an optimizer of MindSpore's is about to use: a number, a Parameter, or a schedule."""

from __future__ import annotations

from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore.common import api  # pyright: ignore[reportMissingImports]


def learning_rate(optimizer: Any) -> float | None:
    """Return the learning rate of the first parameter group; None if it is not a number."""
    return next(iter(learning_rates(optimizer)), None)


def learning_rates(optimizer: Any) -> list[float]:
    """Return the learning rate of each group; a schedule is asked for the step of the optimizer's own counter."""
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, list):  # mindspore.experimental.optim and mint.optim
        return _numbers([group.get("lr") for group in groups if isinstance(group, dict)])
    if not hasattr(optimizer, "get_lr"):
        return _numbers([getattr(optimizer, "learning_rate", None)])
    with api._no_grad():
        found = tabled(optimizer.learning_rate, optimizer) or optimizer.get_lr()
    return _numbers(found if isinstance(found, (tuple, list)) else [found])


def tabled(rate: Any, optimizer: Any) -> float | None:
    """Return this step's rate from a table of rates by step, or the table's last one; None when it is no table.

    MindSpore's own operator fails beyond the end of the table, and says so at some later operator.
    """
    if type(rate).__name__ != "_IteratorLearningRate":
        return None
    table, step = rate.learning_rate.asnumpy(), int(optimizer.global_step.asnumpy().reshape(-1)[0])
    return as_number(ms.Tensor(table[min(step, len(table) - 1)]))


def _numbers(values: Any) -> list[float]:
    return [number for value in values if (number := as_number(value)) is not None]


def as_number(value: Any) -> float | None:
    """Return a number, or the one in a Tensor or Parameter (0.01, where a float32 was made from 0.01); else None."""
    if isinstance(value, (int, float)):
        return None if isinstance(value, bool) else float(value)
    if isinstance(value, ms.Tensor) and value.size == 1:
        number = value.asnumpy().reshape(-1)[0]
        return float(str(number)) if number.dtype == np.float32 else float(number)
    return None
