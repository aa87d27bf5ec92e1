"""Named numbers about the operands of a blamed operator, on the host: what causes need beyond summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.replay.outside import outside


def measured(
    op: str, floating: Sequence[NDArray[Any]], given: Sequence[Any], bad: NDArray[np.bool_] | None, axis: int
) -> dict[str, float | str]:
    """Zeros, numbers outside a domain, masked rows, how many elements were added up.

    Args:
        op: base name of the operator.
        floating: its operands in floating formats.
        given: all its arguments by position: arrays, numbers, or None.
        bad: where its result is not finite; None: that is not known.
        axis: of a softmax.
    """
    found: dict[str, float | str] = {}
    if bad is not None:
        found.update(outside(op, given, bad))
    if not floating:
        return found
    found["n_zero_inputs"] = float((floating[0] == 0).sum())
    if op in ("div", "reciprocal", "rsqrt", "true_divide"):
        found["n_zero_denominators"] = float((floating[-1] == 0).sum())
    if "softmax" in op:
        masked = np.asarray((floating[0] == -np.inf).all(axis=axis))
        found["n_masked_rows"] = float(masked.sum())
        if masked.any():
            found["first_masked_row"] = str([int(i) for i in np.argwhere(masked)[0]])
    if op in ("mean", "std", "var"):
        found["n_elements"] = float(floating[0].size)
    return found
