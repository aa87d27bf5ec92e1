"""Values that a replay holds as NumPy arrays on the host: what is not finite in them, and what doing it again gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.diagnose.evidence import Rerun, TensorFacts
from hypocenter.formats import LARGEST
from hypocenter.optrace import LITERAL_NEGINF, LITERAL_POSINF, NAN, NEGINF, POSINF
from hypocenter.replay.witness import BadValues
from hypocenter.summary.reducers.numpy import summarize

MAX_INDICES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A copy of a tensor's values."""

    array: NDArray[Any]  # float32 for bfloat16
    dtype: str


def bits_of(array: NDArray[Any]) -> int:
    """Return the bits for the kinds of non-finite values that there are; 0 if all are finite."""
    if array.dtype.kind not in "fc" or bool(np.isfinite(array).all()):
        return 0
    real = np.stack([np.real(array), np.imag(array)]) if array.dtype.kind == "c" else array
    return (
        NAN * bool(np.isnan(real).any())
        | POSINF * bool((real == np.inf).any())
        | NEGINF * bool((real == -np.inf).any())
    )


def same_values(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return whether all values are the same, bit for bit as far as a value can tell: NaN equals NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (np.isnan(a) & np.isnan(b))).all())


def bad_mask(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where it is not finite, leaving out constants of the program (a mask's -inf) when there is NaN."""
    nan = np.isnan(array)
    return nan if bool(nan.any()) else ~np.isfinite(array)


def bad_values(found: Held, mask: NDArray[np.bool_]) -> BadValues:
    """Describe elements that are not finite."""
    return BadValues(
        chips=_chips(found.array),
        indices=tuple(tuple(int(i) for i in row) for row in np.argwhere(mask)[:MAX_INDICES]),
        shape=tuple(found.array.shape),
        limit=LARGEST.get(found.dtype),
        mask=mask,
    )


def _chips(array: NDArray[Any]) -> tuple[str, ...]:
    counts = (("NaN", np.isnan(array)), ("+inf", array == np.inf), ("-inf", array == -np.inf))
    return tuple(f"{kind} ×{int(there.sum()):,}" for kind, there in counts if there.any())


def compared(result: NDArray[Any] | None, original: NDArray[Any]) -> Rerun:
    """Compare what an operator gave when it was executed again with its original output, where that was not finite."""
    if result is None or result.shape != original.shape:
        return Rerun(why_not="it has no comparable output")
    there = result[bad_mask(original)]
    finite = np.abs(there[np.isfinite(there)])
    return Rerun(
        ran=True,
        finite=finite.size == there.size,
        absmax=float(finite.max()) if finite.size else 0.0,
        n_nonfinite=int(there.size - finite.size),
        equal_bits=same_values(result, original),
    )


def tensor_facts(found: Held, name: str, origin: str = "", *, literal: bool = False) -> TensorFacts:
    """Describe a tensor as plain facts."""
    return TensorFacts(
        name=name,
        dtype=found.dtype,
        shape=tuple(found.array.shape),
        summary=summarize(found.array),
        origin=origin,
        literal_inf=literal,
    )


def as_constants(bits: int, kind: str, *, is_number: bool) -> int:
    """Mark infinities that the program wrote: an additive mask from outside, or a number that became a tensor."""
    if kind == "external" and is_number:
        return bits & NAN | (LITERAL_POSINF if bits & POSINF else 0) | (LITERAL_NEGINF if bits & NEGINF else 0)
    if bits & NEGINF and not bits & (NAN | POSINF) and kind != "param":
        return LITERAL_NEGINF
    return bits
