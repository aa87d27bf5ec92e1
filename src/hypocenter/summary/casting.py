"""How many elements a cast to another format would lose: bounds that always hold, from a Summary alone.

The histogram's bins are whole octaves, so a limit that is a power of two splits them exactly: of the two bounds,
`least` then counts everything strictly beyond it, and only elements exactly on it remain in doubt. Another limit cuts
one bin; the bounds differ by at most what is in it. The extremes, which are exact, close the gap where they can.
Rounding is to nearest, ties to even (IEEE 754-2019, 4.3.1); hypocenter.formats has the limits.

Counts are of the elements that the histogram looked at; with `n_hist == n` those are all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hypocenter.errors import ConfigError
from hypocenter.formats import Format, find_format
from hypocenter.nouns import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A number of elements that is known to lie between two numbers, both included."""

    least: int
    most: int

    @property
    def is_exact(self) -> bool:
        """Whether the number itself is known: both bounds are equal."""
        return self.least == self.most

    def __contains__(self, n: object) -> bool:
        return isinstance(n, int) and self.least <= n <= self.most


def n_flushed(summary: Summary, form: Format | str, scale: float = 1.0) -> Bounds:
    """Count nonzero elements that, times `scale`, are at most half the smallest subnormal and so become zero."""
    return _n_up_to(summary, as_format(form).flushes_to / as_scale(scale))


def n_nonzero(summary: Summary) -> int:
    """Count the nonzero finite elements that the histogram looked at."""
    return sum(summary.hist)


def as_format(form: Format | str) -> Format:
    """Return the format, looked up by name if need be."""
    return find_format(form) if isinstance(form, str) else form


def as_scale(scale: float) -> Fraction:
    """Return the scale as an exact number.

    Raises:
        ConfigError: it is not positive and finite.
    """
    if not 0.0 < scale < float("inf"):
        raise ConfigError(f"a loss scale of {scale}", why="a scale is a positive finite number")
    return Fraction(scale)


def floor_log2(value: Fraction) -> int:
    """Return floor(log2(value)) of a positive number, exactly."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


def _n_up_to(summary: Summary, limit: Fraction) -> Bounds:
    """Return bounds on the number of nonzero elements at or below the limit."""
    n = n_nonzero(summary)
    if not n:
        return Bounds(least=0, most=0)
    if Fraction(summary.absmax) <= limit:
        return Bounds(least=n, most=n)
    if summary.absmin is not None and Fraction(summary.absmin) > limit:
        return Bounds(least=0, most=0)
    at = floor_log2(limit) - summary.hist_first
    below = sum(summary.hist[: max(0, at)])
    on_or_above = summary.hist[at] if 0 <= at < len(summary.hist) else 0
    is_whole = summary.n_hist == summary.n  # the largest element was then seen by the histogram too
    least = max(below, int(summary.absmin is not None))  # the smallest is within, or it would have been told above
    return Bounds(least=least, most=max(least, min(below + on_or_above, n - int(is_whole))))
