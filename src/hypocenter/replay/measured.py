"""Named numbers about the operands of a blamed operator, on the host: what causes need beyond summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hypocenter.domains import DOMAINS, Domain


def measured(
    op: str, floating: Sequence[NDArray[Any]], given: Sequence[Any], bad: NDArray[np.bool_] | None, axis: int
) -> dict[str, float | str]:
    """Return facts about operands: zeros, numbers outside a domain, masked rows, how many elements were added up.

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


def outside(op: str, operands: Sequence[Any], bad: npt.NDArray[np.bool_]) -> dict[str, float | str]:
    """Return named numbers on operands outside the domain; none if all are within, or the function is not known.

    Args:
        op: base name of the operator.
        operands: its arguments by position: arrays, numbers, or None.
        bad: where its result is not finite.

    Returns:
        `n_outside` elements; `worst_outside`, the number furthest outside, `at_outside`, its index; `is_all_outside`,
        whether the result is bad at exactly these elements.
    """
    domain = DOMAINS.get(op)
    if domain is None or not all(_is_real(x) for x in operands[: domain.of + 2]):
        return {}
    with np.errstate(invalid="ignore"):
        left = domain.left(operands)
    if left is None or not np.any(left):
        return {}
    mask = np.asarray(left, np.bool_)
    values = np.broadcast_to(np.asarray(operands[domain.of]), mask.shape)
    at = np.argwhere(mask)
    worst = int(np.argmax(_excess(domain, values[mask])))
    return {
        "n_outside": float(mask.sum()),
        "worst_outside": float(values[mask][worst]),
        "at_outside": str([int(i) for i in at[worst]]),
        "is_all_outside": float(_is_same(mask, bad)),
    }


def _is_real(x: Any) -> bool:
    return not isinstance(x, complex) and not (isinstance(x, np.ndarray) and np.iscomplexobj(x))


def _excess(domain: Domain, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.maximum(domain.low - values, values - domain.high)


def _is_same(mask: npt.NDArray[np.bool_], bad: npt.NDArray[np.bool_]) -> bool:
    if mask.ndim == 1 and bad.ndim > 1 and mask.shape[0] == bad.shape[1]:  # one number a channel
        mask = mask.reshape(-1, *(1,) * (bad.ndim - 2))
    try:
        return bool((np.broadcast_to(mask, bad.shape) == bad).all())
    except ValueError:
        return False
