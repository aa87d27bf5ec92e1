"""What a loss scale has done so far, and what kind of skip the next one would be. Constant work per update.

A dynamic scaler halves its scale at each overflow and doubles it after `growth_interval` updates without one (torch:
2,000). So skips are how it works: many at the start, where it starts too high on purpose, and about one per interval
after that, when it tries the next higher scale. Only what is left after these two says something about the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SkipKind = Literal["warm-up", "probing", "fall"]

WARM_UPDATES = 8  # updates in a row that went through: the scaler has found its first scale
WARM_STEPS = 64  # or this many updates and skips: from 2^32, the highest first scale in use, to 1 are 32 halvings
MANY_IN_A_ROW = 16  # halvings use up all of the usual scale, 65,536: gradients grew that much from one step to the next
LONG_WARM_UP = 48  # skips in a row from the start: 32 halvings from 2^32, with some patience (hysteresis)
LOW_SKIPS = 3  # at a scale below 1, where gradients are smaller than without scaling
FLOOR_STREAK = 8  # skips in a row that end at the scaler's own floor, of 1 or less
KEPT_FALLS = 64
MIN_FALLS = 5  # of one layer, before it is said to keep overflowing
MIN_EPISODES = 3  # each begun after an update that went through: one spike of some steps is not "again and again"
MIN_OCTAVES = 4.0  # that the scale must have lost and not regained
NEW_OCTAVES = 2.0  # of them below every scale that updates went through at before: a range it is used to says nothing
NEARLY_ALL = 0.9  # share of the skips
FIXED_SPACING = 20  # updates per skip, at most, under a scale that never changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """One skipped update."""

    step: int
    scale: float
    culprit: str = ""  # parameter, "" when not known
    is_first: bool = True  # the update before went through


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapse:
    """A scale that keeps falling, as far as it is known when it is first said."""

    first: Skip
    n_skips: int
    is_low: bool  # below 1, or at the scaler's floor
    culprits: Mapping[str, int]  # parameter -> skips


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """One parameter or module whose gradient overflows again and again."""

    name: str
    is_parameter: bool
    n_skips: int
    n_of: int  # skips with a known culprit
    falls: tuple[Skip, ...]


@dataclass(slots=True, kw_only=True)
class ScaleTrack:
    """Follow the loss scale over updates, which are added in order."""

    is_dynamic: bool = True
    floor: float = 0.0  # the scaler never goes below it; 0: not known, or none
    growth_factor: float = 2.0
    n_in_a_row: int = 0  # skips up to now
    streak: list[Skip] = field(default_factory=list)  # the first of them, nothing when the last update went through
    lowest: float = math.inf  # scale of an update that went through after warm-up and before these falls
    falls: list[Skip] = field(default_factory=list)  # neither warm-up nor probing, since the scale last grew
    largest: dict[str, float] = field(default_factory=dict)  # parameter -> largest finite gradient, without the scale
    _culprits: Counter[str] = field(default_factory=Counter[str])  # of the skips in a row
    _n: int = 0
    _n_applied: int = 0  # in a row, up to now
    _is_warm: bool = False
    _settled: float = 0.0  # the last scale that lasted until the scaler took a higher one
    _last: float = 0.0
    _lowest_now: float = math.inf  # of all updates that went through since the falls began
    _n_low: int = 0
    _is_told: bool = False

    def kind(self, scale: float) -> SkipKind:
        """Return what kind of skip one at this scale would be, coming now."""
        if not self._is_warm or self._is_restarted(scale):
            return "warm-up"
        return "probing" if self._settled and scale > self._settled * 1.001 else "fall"

    def collapse(self, skip: Skip) -> Collapse | None:
        """Return that the scale keeps falling, if this skip is the one that shows it; else None. It is said once."""
        if self._is_told or self._is_restarted(skip.scale):
            return None
        n = self.n_in_a_row + 1
        is_low = self._shows_low(skip.scale, n)
        if not is_low and n < (MANY_IN_A_ROW if self._is_warm or not self.is_dynamic else LONG_WARM_UP):
            return None
        begun = [*self.streak[:1], *(self.falls[:1] if is_low else ()), skip]
        first = min(begun, key=lambda s: s.step)
        is_streak = bool(self.streak) and first.step == self.streak[0].step
        culprits = self._culprits if is_streak or not self.falls else Counter(f.culprit for f in self.falls)
        counted = Counter(culprits) + Counter([skip.culprit])
        n_skips = n if is_streak or not self.falls else max(n, len(self.falls) + 1)
        return Collapse(
            first=first, n_skips=n_skips, is_low=is_low, culprits={k: v for k, v in counted.most_common() if k}
        )

    def repeated(self, skip: Skip) -> Repeated | None:
        """Return that one layer keeps overflowing, if this skip is the one that shows it; else None."""
        if self.kind(skip.scale) != "fall":
            return None
        before, now = (self._repeated(falls) for falls in (self.falls, [*self.falls, skip]))
        return now if before is None else None

    def times(self, culprit: str) -> int:
        """Count the skips, neither warm-up nor probing, of which this parameter was the culprit."""
        return sum(fall.culprit == culprit for fall in self.falls)

    def add(self, step: int, scale: float, *, skipped: bool, culprit: str = "") -> None:
        """Take one update into account."""
        if self._is_restarted(scale):
            self._restart()
        if skipped:
            self._skipped(Skip(step=step, scale=scale, culprit=culprit, is_first=self.n_in_a_row == 0))
        else:
            self._applied(scale)
        self._n += 1
        self._is_warm = self._is_warm or self._n >= WARM_STEPS
        self._last = scale

    def note_gradient(self, name: str, largest: float) -> None:
        """Note the largest magnitude of a finite gradient, with the scale taken out."""
        if largest > self.largest.get(name, 0.0):
            self.largest[name] = largest

    def _skipped(self, skip: Skip) -> None:
        if self.kind(skip.scale) == "fall":
            if len(self.falls) >= KEPT_FALLS:
                del self.falls[1]  # the first one says where the scale came from
            self.falls.append(skip)
        self._is_told = self._is_told or self.collapse(skip) is not None
        if self._is_low(skip.scale):
            self._n_low += 1
        if not self.n_in_a_row:
            self.streak = [skip]
            self._culprits.clear()
        self._culprits[skip.culprit] += 1
        self.n_in_a_row += 1
        self._n_applied = 0

    def _applied(self, scale: float) -> None:
        if self._n_applied and scale > self._last:
            self._settled = self._last
        self.n_in_a_row, self.streak = 0, []
        self._n_applied += 1
        if self._n_applied >= WARM_UPDATES:
            self._is_told, self._n_low = False, 0
            if not self._is_warm:
                self._is_warm, self._settled, self._lowest_now = True, scale, scale
        self._lowest_now = min(self._lowest_now, scale)
        if self.falls and scale > self._last:  # it lasted for an interval: what fell is forgiven
            self.falls.clear()
        if not self.falls and self._is_warm:
            self.lowest = min(self.lowest, self._lowest_now)

    def _repeated(self, falls: list[Skip]) -> Repeated | None:
        falls = falls if self.is_dynamic else falls[-2 * MIN_FALLS :]
        known = [fall for fall in falls if fall.culprit]
        if len(known) < MIN_FALLS or sum(fall.is_first for fall in falls) < MIN_EPISODES:
            return None
        if self.is_dynamic:
            left = falls[-1].scale / 2  # scalers halve
            if left > falls[0].scale * 2**-MIN_OCTAVES or left > self.lowest * 2**-NEW_OCTAVES:
                return None
        elif falls[-1].step - falls[0].step > FIXED_SPACING * len(falls):
            return None
        for name, n in _paths(known):
            if n >= NEARLY_ALL * len(known):
                is_parameter = any(fall.culprit == name for fall in known)
                return Repeated(name=name, is_parameter=is_parameter, n_skips=n, n_of=len(known), falls=tuple(falls))
        return None

    def _is_restarted(self, scale: float) -> bool:
        """Return whether the scale grew faster than any scaler lets it: it is another one, or its state was lost."""
        return 0 < self._last < scale / (1.001 * max(2.0, self.growth_factor))

    def _restart(self) -> None:
        self._is_warm, self._settled, self._n, self._n_applied, self._n_low = False, 0.0, 0, 0, 0
        self.lowest = self._lowest_now = math.inf
        self.n_in_a_row, self.streak, self._is_told = 0, [], False
        self.falls.clear()
        self._culprits.clear()

    def _is_low(self, scale: float) -> bool:
        return scale < 1 or (self.floor > 0 and scale <= self.floor and self.is_dynamic)

    def _shows_low(self, scale: float, n_in_a_row: int) -> bool:
        if not self._is_low(scale):
            return False
        at_floor_of_one = scale <= self.floor <= 1 and n_in_a_row >= FLOOR_STREAK
        return self._n_low + 1 >= LOW_SKIPS or at_floor_of_one


def module_of(parameter: str) -> str:
    """Return the module path of a parameter; "" for one of the outermost module."""
    return parameter.rpartition(".")[0]


def _paths(falls: list[Skip]) -> list[tuple[str, int]]:
    """Count the falls below each parameter and the module paths above it, deepest path first."""
    counts = Counter[str]()
    for fall in falls:
        path = fall.culprit
        while path:
            counts[path] += 1
            path = module_of(path)
    return sorted(counts.items(), key=lambda item: (-item[0].count("."), -item[1]))
