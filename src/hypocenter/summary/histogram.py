"""What would happen to these values in another format, at another loss scale? Answered from a Summary alone.

A fraction is of the finite elements that the histogram looked at. Bins are whole powers of two, so a limit that is one
(where values become subnormal or zero, at a power-of-two scale) is decided exactly, but for elements exactly on it. Any
other limit cuts a bin, which is then shared out evenly in log2|x|: the error is at most that one bin's fraction. The
extremes are exact, so nothing is ever said to overflow when the largest value does not.
"""

from __future__ import annotations

import math
from fractions import Fraction

from hypocenter.formats import Format
from hypocenter.nouns import Summary
from hypocenter.summary.casting import as_format, as_scale, floor_log2, n_nonzero


def overflow_fraction(summary: Summary, form: Format | str, scale: float = 1.0) -> float:
    """Return the fraction of the elements whose scaled value rounds beyond the format's largest number.

    The format's limit cuts its own top bin, so that bin is shared out even at a power-of-two scale. Zero exactly when
    nothing overflows; at least one element's worth when the largest value does.
    """
    wanted = as_format(form)
    limit = wanted.overflows_from / as_scale(scale)
    largest = Fraction(summary.absmax)
    if largest < limit or (largest == limit and not wanted.has_infinity):
        return 0.0
    n = _n_finite(summary)
    seen = (n_nonzero(summary) - _n_below(summary, limit)) / n if n else 0.0
    return max(seen, 1.0 / summary.n)


def underflow_fraction(summary: Summary, form: Format | str, scale: float = 1.0) -> float:
    """Return the fraction of elements that become zero: at most half the smallest subnormal after scaling."""
    n = _n_finite(summary)
    limit = as_format(form).flushes_to / as_scale(scale)
    if not n or summary.absmin is None or Fraction(summary.absmin) > limit:
        return 0.0
    return max(_n_below(summary, limit), 1.0) / n


def subnormal_fraction(summary: Summary, form: Format | str, scale: float = 1.0) -> float:
    """Return the fraction of elements whose scaled magnitude is below the smallest normal number, but not zero."""
    n = _n_finite(summary)
    if not n:
        return 0.0
    wanted, factor = as_format(form), as_scale(scale)
    normal = Fraction(2) ** wanted.smallest_exponent
    return max(0.0, _n_below(summary, normal / factor) - _n_below(summary, wanted.flushes_to / factor)) / n


def zero_fraction(summary: Summary) -> float:
    """Return the fraction of the elements that are exactly zero already."""
    n = _n_finite(summary)
    return summary.n_zero / n if n else 0.0


def _n_below(summary: Summary, limit: Fraction) -> float:
    """Count nonzero elements below a limit; the bin that it cuts is shared out as if even in log2|x|."""
    if not summary.hist or (summary.absmin is not None and limit <= Fraction(summary.absmin)):
        return 0.0
    if limit > Fraction(summary.absmax):
        return float(n_nonzero(summary))
    exponent = floor_log2(limit)
    at = exponent - summary.hist_first
    if at < 0:
        return 0.0
    cut = summary.hist[at] if at < len(summary.hist) else 0
    return sum(summary.hist[:at]) + cut * math.log2(limit / Fraction(2) ** exponent)


def _n_finite(summary: Summary) -> int:
    return summary.n_zero + n_nonzero(summary)
