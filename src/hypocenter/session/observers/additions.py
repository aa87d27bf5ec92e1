"""What an accumulator adds up, done again for a sample of it: in its own format and in a wide one. Of any framework."""

from __future__ import annotations

from typing import Any

from hypocenter.session.framework import Framework

Array = Any  # see hypocenter.session.framework


class Additions:
    """The sums of one accumulator.

    Attributes:
        own: sum in the format of what is added; None before the first addition.
        n_added: additions so far.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self.own: Array | None = None
        self._exact: Array | None = None
        self._counts: Array | None = None  # additions of a gradient that is not 0, those without effect, mismatches
        self.n_added = 0

    def add(self, gradient: Array, present: Array | None) -> None:
        """Add one more gradient.

        Args:
            present: what the program's own accumulator holds before it; None: nothing, or it is not seen.
        """
        self.n_added += 1
        wide = self._framework.wide(gradient)
        if self.own is None:
            xp = self._framework.xp
            start = xp.zeros_like(gradient) if present is None else self._framework.copied(present)
            self.own, self._exact = start + gradient, self._framework.wide(start) + wide
            self._counts = xp.zeros_like(xp.stack([wide[0]] * 3))
            return
        after, is_there = self.own + gradient, gradient != 0
        mismatches = is_there & False if present is None else present != self.own
        facts = [is_there, is_there & (after == self.own), mismatches]
        self._counts = self._counts + self._framework.xp.stack(facts).sum(-1)
        self.own, self._exact = after, self._exact + wide

    @property
    def exact(self) -> Array | None:
        """The sum in a wide format; None before the first addition."""
        return self._exact

    def numbers(self) -> Array | None:
        """Return three counts, then the products <own, exact> and <exact, exact>; None when nothing was added up."""
        if self.own is None or self._exact is None or self._counts is None:
            return None
        xp, own = self._framework.xp, self._framework.wide(self.own)
        products = xp.stack([(own * self._exact).sum(), (self._exact * self._exact).sum()])
        return xp.concatenate([self._counts, products])
