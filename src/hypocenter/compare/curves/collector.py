"""From points in the order of a log to a Curve: later beats earlier, and nothing grows without a bound."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

import numpy as np

from hypocenter.compare.curves.curve import Curve, Series, Steps, Values
from hypocenter.compare.curves.names import canonical

MOST_POINTS = 20_000_000  # of one file: 320 MB of memory; a year of one step a second
MOST_SERIES = 2_000  # names of one file: beyond it is no log of scalars
_STEP_AT_MOST = 2**53  # beyond it a float cannot count


class Collector:
    """Takes (step, label, value) as a reader finds them; `curve` sorts, cuts what a resumed run wrote again, names."""

    def __init__(self, source: str, kind: str, *, counts_from: int | None, means: Iterable[str] = ()) -> None:
        """Args: `counts_from`: the number this kind of log gives its first step; `means`: names (ours) of quantities
        that it prints as the mean over the steps since the line before."""
        self.source, self.kind, self.counts_from = source, kind, counts_from
        self.means = frozenset(means)
        self.digests: dict[int, str] = {}
        self._steps: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}
        self._problems: dict[str, int] = {}
        self._n_points = 0

    @property
    def is_full(self) -> bool:
        """Whether further points would be dropped: a reader may stop."""
        return self._n_points >= MOST_POINTS

    def add(self, step: int, label: str, value: float) -> None:
        """One entry. Steps that no counter can reach, and what is too much, are counted as problems."""
        if not 0 <= step <= _STEP_AT_MOST:
            self.problem("an entry whose step is negative or absurd was left out")
            return
        if self.is_full:
            self.problem(f"only the first {MOST_POINTS:,} entries were read")
            return
        if label not in self._steps:
            if len(self._steps) >= MOST_SERIES:
                self.problem(f"only the first {MOST_SERIES:,} names were read")
                return
            self._steps[label], self._values[label] = array("q"), array("d")
        self._steps[label].append(step)
        self._values[label].append(value)
        self._n_points += 1

    def problem(self, text: str) -> None:
        """Note what is wrong with the log; the same text is kept once, with how often it was."""
        if len(self._problems) < 100 or text in self._problems:  # a stranger's file decides how many texts there are
            self._problems[text] = self._problems.get(text, 0) + 1

    def curve(self) -> Curve:
        """Everything so far."""
        best = self._best_labels()
        series = {name: self._series(name, label) for name, label in best.items()}
        if self.digests and self.counts_from:
            self.digests = {step - self.counts_from: digest for step, digest in self.digests.items()}
        return Curve(
            source=self.source, kind=self.kind, series=series, counts_from=self.counts_from, digests=self.digests,
            problems=tuple(text if n == 1 else f"{text} (×{n:,})" for text, n in self._problems.items()),
        )  # fmt: skip

    def _best_labels(self) -> dict[str, str]:
        found: dict[str, tuple[int, str]] = {}
        for label in self._steps:
            name, rank = canonical(label)
            if name not in found or rank < found[name][0]:
                found[name] = (rank, label)
        return {name: label for name, (_, label) in found.items()}

    def _series(self, name: str, label: str) -> Series:
        steps = np.frombuffer(self._steps[label], dtype=np.int64)
        values = np.frombuffer(self._values[label], dtype=np.float64)
        steps, values, n_replaced = last_attempt(steps, values)
        if n_replaced:
            self.problem(
                f"{n_replaced:,} entries of {label!r} were logged again later (a resumed run): the later count"
            )
        return Series(
            name=name, steps=steps - (self.counts_from or 0), values=values, label=label, is_mean=name in self.means
        )


def last_attempt(steps: Steps, values: Values) -> tuple[Steps, Values, int]:
    """What is left of a log in which a resumed run counts again from an earlier step, and how many entries are not.

    An entry is dropped if any later entry has the same or a smaller step: from where a run was resumed, its second
    history is the true one, also where the first one went further.
    """
    if len(steps) == 0:
        return steps.copy(), values.copy(), 0
    smallest_later = np.minimum.accumulate(steps[::-1])[::-1]
    keep = np.ones(len(steps), dtype=bool)
    keep[:-1] = steps[:-1] < smallest_later[1:]
    return steps[keep].copy(), values[keep].copy(), int(len(steps) - keep.sum())


def number(value: object) -> float | None:
    """A scalar as a float: numbers, bools and the texts of numbers (JSON has none for NaN); None for anything else."""
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and len(value) <= 64:
        try:
            return float(value)
        except ValueError:
            return None
    return None


def whole(value: object) -> int | None:
    """A step number: an int, or a float or text that is whole; None for anything else."""
    found = number(value)
    if found is None or not math.isfinite(found) or found != int(found):
        return None
    return int(found)
