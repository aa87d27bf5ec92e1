"""The `bprop` of a MindSpore cell of the program's own is the derivative of its `construct`, or it is not.

As hypocenter.relations.derivative asks it of torch's functions: in float64, at an input of the run, along random
directions. Asked of cells without parameters or cells in them, that are given tensors of floats alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter.relations.scores import Wrong
from hypocenter.replay.mindspore.host import flat, is_floating
from hypocenter.tap.mindspore.gradients import host

LIMIT = 0.02  # relative
_N_DIRECTIONS = 5
_STEPS, _SMOOTH = (1e-4, 2.5e-5), 1e-3  # relative: to the size of the inputs, and of the two differences to each other
_MOST_ELEMENTS = 1 << 18

Array: TypeAlias = NDArray[np.float64]


def is_own(cell: Any) -> bool:
    """Return whether the cell has a `bprop` of the program's own, and neither parameters nor cells inside."""
    own = getattr(type(cell), "bprop", None)
    return callable(own) and not own.__module__.startswith("mindspore") and not cell._params and not cell._cells


def error_of(cell: Any, inputs: Sequence[NDArray[Any]]) -> float | None:
    """Return the relative error of `bprop`; None if nobody can tell, or if it is not meant to be the derivative."""
    at = [np.asarray(values, np.float64) for values in inputs]
    if not at or sum(values.size for values in at) > _MOST_ELEMENTS or not all(np.isfinite(v).all() for v in at):
        return None
    try:
        return _error(cell, at)
    except Exception:  # the user's own code runs here, in another format than it may be made for
        return None


def wrong_derivative(cell: Any, error: float) -> Wrong:
    """Describe in words that the `bprop` of this cell is not the derivative of its `construct`."""
    return Wrong(
        title=f"the bprop of {type(cell).__qualname__} is not the derivative of its construct",
        why=f"in float64 what bprop gives is {error:.2g} of its size away from differences of construct",
        remedy="mend the formula in bprop",
    )


def _error(cell: Any, at: Sequence[Array]) -> float | None:
    def forward(values: Sequence[Array]) -> list[Array]:
        return [
            np.asarray(host(t), np.float64) for t in flat(cell.construct(*map(ms.Tensor, values))) if is_floating(t)
        ]

    first, again = forward(at), forward(at)
    if not first or any(not np.array_equal(a, b) for a, b in zip(first, again, strict=True)):
        return None
    if any(y.shape == x.shape and np.array_equal(y, x) for y in first for x in at):
        return None
    draw = np.random.default_rng(0)
    found = [_along(cell, forward, at, draw) for _ in range(_N_DIRECTIONS)]
    known = [each for each in found if each is not None]
    if 2 * len(known) <= len(found):
        return None
    off, usual = (sum(each[i] ** 2 for each in known) for i in (0, 1))
    return math.sqrt(off / usual)


def _along(
    cell: Any, forward: Callable[[Sequence[Array]], list[Array]], at: Sequence[Array], draw: np.random.Generator
) -> tuple[float, float] | None:
    """Return how far `bprop` is off along one direction of all inputs, and the usual size of its result."""
    given = list(map(ms.Tensor, at))
    outputs = cell.construct(*given)
    is_one = isinstance(outputs, ms.Tensor)
    heads = [draw.standard_normal(tuple(y.shape)) for y in flat(outputs)]
    head = ms.Tensor(heads[0]) if is_one else tuple(map(ms.Tensor, heads))
    gradients = [np.asarray(host(g), np.float64) for g in flat(cell.bprop(*given, outputs, head))]
    if len(gradients) != len(at):
        return None
    along = [draw.standard_normal(x.shape) * (float(np.abs(x).mean()) or 1.0) for x in at]

    def rate(step: float) -> tuple[float, bool]:
        up, down = (forward([x + s * step * d for x, d in zip(at, along, strict=True)]) for s in (1, -1))
        is_flat = any(bool((a == b).any()) for a, b in zip(up, down, strict=True))
        return sum(float(((a - b) * w).sum()) for a, b, w in zip(up, down, heads, strict=True)) / (2 * step), is_flat

    (coarse, _), (fine, is_flat) = map(rate, _STEPS)
    terms = np.concatenate([(g * d).reshape(-1) for g, d in zip(gradients, along, strict=True)])
    by_backward, usual = float(terms.sum()), max(abs(fine), float(np.linalg.norm(terms)))
    if is_flat or fine == 0.0 or not math.isfinite(by_backward) or abs(coarse - fine) > _SMOOTH * usual:
        return None
    return abs(by_backward - fine), usual
