"""At which length a reduction overflows its format, from a Summary of what it adds up.

Each answer says which bound it is:

    expected    the terms have one sign, so that mean|x| = |sum| / n is exact and L * mean|x| is the result: it
                overflows from this length on, if the terms stay as they are (L_crit = finfo.max / mean|x|)
    exact       the result depends on known sums only (a norm: sqrt(L) * rms)
    not before  by Cauchy and Schwarz |sum| <= L * rms: it cannot overflow below this length; where signs cancel it
                overflows later or never
    in proportion   the result was seen and its terms need not have one sign: what it would take if it grew linearly
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hypocenter.formats import Format
from hypocenter.nouns import Summary
from hypocenter.summary.casting import as_format

Bound = Literal["expected", "exact", "not before", "in proportion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Critical:
    """From `size` on the result is above the format's largest number, as far as `bound` goes."""

    size: float  # terms that are added up, or |x| for a power; infinite when it never happens
    bound: Bound
    typical: float  # the magnitude of a term that it was computed from: mean|x|, or rms for "not before" and norms


def rms(summary: Summary) -> float:
    """Return the root mean square of the finite elements; 0 without any."""
    n = _n_finite(summary)
    return math.sqrt(summary.sumsq / n) if n > 0 else 0.0


def mean_magnitude(summary: Summary) -> float | None:
    """Return mean|x| of the finite elements, exact; None when signs are mixed, as then only rms bounds it."""
    n = _n_finite(summary)
    if n <= 0 or summary.min is None or summary.max is None:
        return None
    return abs(summary.sum) / n if summary.min >= 0.0 or summary.max <= 0.0 else None


def critical_sum(summary: Summary, form: Format | str) -> Critical:
    """Return the length from which a sum (or a mean whose sum is kept in the format) of such terms overflows."""
    mean = mean_magnitude(summary)
    typical = rms(summary) if mean is None else mean
    return Critical(
        size=_over(as_format(form).max, typical), bound="not before" if mean is None else "expected", typical=typical
    )


def critical_norm(summary: Summary, form: Format | str) -> Critical:
    """Return the length from which the L2 norm of such elements, sqrt(L) * rms, overflows."""
    typical = rms(summary)
    return Critical(size=_over(as_format(form).max, typical) ** 2, bound="exact", typical=typical)


def critical_power(exponent: float, form: Format | str) -> Critical:
    """Return the magnitude from which |x| ** exponent overflows: 256 for the square in float16."""
    size = as_format(form).max ** (1.0 / exponent)
    return Critical(size=size, bound="exact", typical=size)


def critical_product(left: Summary, right: Summary, form: Format | str) -> Critical:
    """Return the inner dimension below which a matrix product (attention scores: the head's) cannot overflow.

    A product of two terms is at most |left max| * |right max|, and there are as many as the inner dimension.
    """
    largest = left.absmax * right.absmax
    return Critical(size=_over(as_format(form).max, largest), bound="not before", typical=largest)


def critical_growth(present: float, largest: float, form: Format | str) -> Critical:
    """Return the length at which a result overflows if it grows in proportion from its present length and size."""
    typical = largest / present if present > 0.0 else 0.0
    return Critical(size=_over(as_format(form).max, typical), bound="in proportion", typical=typical)


def _n_finite(summary: Summary) -> int:
    return summary.n - summary.n_nonfinite


def _over(limit: float, typical: float) -> float:
    return limit / typical if typical > 0.0 else math.inf
