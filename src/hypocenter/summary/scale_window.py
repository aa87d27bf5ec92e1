"""The loss scales at which gradients lose nothing in a format: above where small ones vanish, below where large ones
overflow. Exact (fractions of the extremes); the share that may be lost is answered in whole octaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from hypocenter.errors import ConfigError
from hypocenter.formats import Format
from hypocenter.nouns import Summary
from hypocenter.summary.casting import as_format, as_scale, floor_log2, n_nonzero


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWindow:
    """The loss scales larger than `above` and smaller than `below`; the sites are those that set each side.

    `above` is 0 where nothing can vanish, `below` None where nothing can overflow. An empty window says that no scale
    keeps everything: some values are too far apart for the format.
    """

    above: Fraction = Fraction(0)
    below: Fraction | None = None
    is_below_included: bool = False  # in a format without infinity the limit itself still rounds down
    lowest_site: str = ""  # its smallest gradient sets `above`
    highest_site: str = ""  # its largest gradient sets `below`
    is_sampled: bool = False  # `above` comes from a sample of the elements: smaller ones may exist

    @property
    def is_empty(self) -> bool:
        """Whether no scale lies in the window."""
        return self.below is not None and self.below <= self.above

    def holds(self, scale: float) -> bool:
        """Return whether this scale loses nothing."""
        exact = as_scale(scale)
        if self.below is None:
            return exact > self.above
        return self.above < exact and (exact < self.below or (self.is_below_included and exact == self.below))

    @property
    def smallest_power(self) -> int | None:
        """The exponent of the smallest power of two inside; None when there is none, or no lower side."""
        if not self.above:
            return None
        exponent = floor_log2(self.above) + 1
        return exponent if self.holds_power(exponent) else None

    @property
    def largest_power(self) -> int | None:
        """The exponent of the largest power of two inside; None when there is none, or no upper side."""
        if self.below is None:
            return None
        exponent = floor_log2(self.below)
        exponent -= Fraction(2) ** exponent == self.below and not self.is_below_included
        return exponent if self.holds_power(exponent) else None

    def holds_power(self, exponent: int) -> bool:
        """Return whether 2**exponent loses nothing, however large or small it is."""
        exact = Fraction(2) ** exponent
        if exact <= self.above or self.is_empty:
            return False
        return self.below is None or exact < self.below or (self.is_below_included and exact == self.below)


def scale_window(
    summary: Summary, form: Format | str, *, carried: float = 1.0, lost: float = 0.0, site: str = ""
) -> ScaleWindow:
    """Return the window of one site.

    Args:
        summary: of its gradients; NaN and infinities are left out, as nothing is known of what they were.
        carried: the loss scale that these values still contain; 1 when it has been taken out.
        lost: share of the nonzero elements that may become zero. With more than 0 the lower side is the one that the
            histogram can warrant: at most one octave above the true one.

    Raises:
        ConfigError: an impossible scale, or a share outside [0, 1).
    """
    wanted, factor = as_format(form), as_scale(carried)
    if not 0.0 <= lost < 1.0:
        raise ConfigError(f"a share of {lost} that may be lost", why="a share lies between 0 and 1")
    if not summary.absmax:
        return ScaleWindow()
    smallest = _smallest_kept(summary, lost)
    return ScaleWindow(
        above=Fraction(0) if smallest is None else wanted.flushes_to / smallest * factor,
        below=wanted.overflows_from / Fraction(summary.absmax) * factor,
        is_below_included=not wanted.has_infinity,
        lowest_site=site if smallest is not None else "",
        highest_site=site,
        is_sampled=summary.n_hist < summary.n,
    )


def intersection(windows: Iterable[ScaleWindow]) -> ScaleWindow:
    """Return the scales that lie in every window: those of a model, given its sites'. Of equals the first is named."""
    total = ScaleWindow()
    for window in windows:
        total = _both(total, window)
    return total


def _both(a: ScaleWindow, b: ScaleWindow) -> ScaleWindow:
    low = a if a.above >= b.above else b
    high = a if _upper(a) <= _upper(b) else b
    return ScaleWindow(
        above=low.above,
        below=high.below,
        is_below_included=high.is_below_included,
        lowest_site=low.lowest_site,
        highest_site=high.highest_site,
        is_sampled=a.is_sampled or b.is_sampled,
    )


def _upper(window: ScaleWindow) -> tuple[bool, Fraction, bool]:
    """Return a key that orders upper sides: no limit is the largest, an included one above the same excluded."""
    return window.below is None, window.below or Fraction(0), window.is_below_included


def _smallest_kept(summary: Summary, lost: float) -> Fraction | None:
    """Return the magnitude that must not vanish, so that at most the share `lost` of the nonzero elements does."""
    if summary.absmin is None:
        return None
    smallest = Fraction(summary.absmin)
    allowed = Fraction(lost) * n_nonzero(summary)
    gone = 0
    for exponent, count in enumerate(summary.hist, summary.hist_first):
        if gone + count > allowed:
            return max(smallest, Fraction(2) ** exponent)
        gone += count
    return smallest
