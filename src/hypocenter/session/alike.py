"""When all units of a layer are the same for ever. For HC254."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypocenter.detect.law_rows import ALIKE
from hypocenter.nouns import Reading
from hypocenter.session.observers.optimizer_rows import number_row

AT = (0, 8)  # steps; what begins alike is alike then
_ROUNDINGS = 64  # of sums in another order


def are_alike(weight: Any, slope: Any, eps: float) -> Any:
    """Return whether all rows of a weight are equal and not 0, and those of its gradient equal but for rounding.

    Args:
        weight: [units, ...], an array of torch's or NumPy's.
        slope: its gradient, of the same shape.
        eps: of the format of the gradient.

    Returns:
        A bool, in an array of no dimension where these are torch's.
    """
    size = abs(slope).max()
    off = abs(slope - slope[:1]).max()
    is_same = (weight == weight[:1]).all() & weight.any() & (size > 0)
    return is_same & (off <= _ROUNDINGS * eps * size)


def alike_row(names: Sequence[str], step: int, order: int) -> Reading:
    """Return the row of HC254: it names the first of these weights, and its value is how many there are."""
    return number_row(names[0], ALIKE, step, order, float(len(names)))
