"""Where functions of real numbers are defined: the square root from 0 on, acos between -1 and 1.

Outside its domain such a function is NaN in every format. Names are base names of operators (diagnose.operators).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """An operand of a function, and the numbers that it may have; the ends belong to it or are poles (log at 0)."""

    low: float = -math.inf
    high: float = math.inf
    of: int = 0  # position of the operand
    outside: str  # a number that is not in it, in words

    def has(self, low: float | None, high: float | None) -> bool:
        """Return whether all numbers between two are in the domain; None: that end is not known."""
        return not (low is not None and low < self.low) and not (high is not None and high > self.high)

    def end_near(self, number: float) -> float | None:
        """Return the end of the domain that a number outside lies nearest to; None: it has no ends."""
        ends = [end for end in (self.low, self.high) if math.isfinite(end)]
        return min(ends, key=lambda end: abs(end - number), default=None)

    def left(self, operands: Sequence[Any]) -> Any:
        """Return where an operand lies outside: a mask of its kind (array, tensor, bool); None without an operand."""
        x = operands[self.of] if self.of < len(operands) else None
        return None if x is None else (x < self.low) | (x > self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Power(Domain):
    """The domain of x ** y: a negative x has a power only if y is whole."""

    def has(self, low: float | None, high: float | None) -> bool:
        """Return True: the base alone does not tell."""
        return True

    def left(self, operands: Sequence[Any]) -> Any:
        """Return where a base is negative and its exponent is not whole; None without an exponent."""
        if len(operands) < 2 or operands[1] is None:
            return None
        return (operands[0] < 0) & (operands[1] % 1 != 0)


class _Poles(Domain):
    """The domain of the gamma function and the like: infinite at 0, -1, -2, ..."""

    def has(self, low: float | None, high: float | None) -> bool:
        """Return True: the ends do not tell."""
        return True

    def left(self, operands: Sequence[Any]) -> Any:
        """Return where the operand is 0 or a negative whole number."""
        return (operands[0] <= 0) & (operands[0] % 1 == 0)


_NEGATIVE, _BEYOND_ONE, _NO_SHARE = "a negative number", "a number beyond ±1", "a number outside 0 to 1"
_ROOT = Domain(low=0.0, outside=_NEGATIVE)
_BETWEEN_ONES = Domain(low=-1.0, high=1.0, outside=_BEYOND_ONE)
_SHARE = Domain(low=0.0, high=1.0, outside=_NO_SHARE)
_SECOND_ROOT = Domain(low=0.0, of=1, outside=_NEGATIVE)
_GAMMA = _Poles(outside="0 or a negative whole number")
_VARIANCE = Domain(low=0.0, of=4, outside="a negative running variance")

DOMAINS: dict[str, Domain] = {
    "sqrt": _ROOT, "rsqrt": _ROOT, "log": _ROOT, "log2": _ROOT, "log10": _ROOT,
    "log1p": Domain(low=-1.0, outside="a number below -1"),
    "acosh": Domain(low=1.0, outside="a number below 1"),
    "acos": _BETWEEN_ONES, "asin": _BETWEEN_ONES, "atanh": _BETWEEN_ONES, "erfinv": _BETWEEN_ONES,
    "logit": _SHARE, "special_ndtri": _SHARE, "special_entr": _ROOT, "lgamma": _GAMMA, "digamma": _GAMMA,
    "special_modified_bessel_k0": _ROOT, "special_modified_bessel_k1": _ROOT,
    "special_bessel_y0": _ROOT, "special_bessel_y1": _ROOT,
    "xlogy": _SECOND_ROOT, "special_xlog1py": Domain(low=-1.0, of=1, outside="a number below -1"),
    "igamma": _SECOND_ROOT, "igammac": _SECOND_ROOT,
    "pow": _Power(low=0.0, outside="a negative number with an exponent that is not whole"),
    "native_batch_norm": _VARIANCE, "cudnn_batch_norm": _VARIANCE, "_native_batch_norm_legit_no_training": _VARIANCE,
}  # fmt: skip
