"""The batches of a run against each other: one that comes again, and fields whose values change."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypocenter.detect.replica_rows import BATCH_PREFIX, FIELD_PORT
from hypocenter.detect.spikes import Series
from hypocenter.nouns import Reading

REMEMBERED = 8192  # batches
KNOWN = 32  # batches without the like, before one that is remarked on
_WINDOW = 32  # batches that tell what is usual of a field
_LEAST = 8  # elements of a tensor whose values are looked at
_AWAY = 0.25  # of its usual spread: a mean that moves less is not remarked on
_ERRORS = 6.0  # of a mean of so many independent values


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A batch that was used before."""

    step: int  # where it was used before
    n_back: int  # batches ago
    n_before: int  # batches, none of which had come again


class Repeats:
    """Follows the order of batches.

    Epochs that are not shuffled, one batch that is trained on over and over, and several passes over each batch are
    habits: they come again from the first time that they can. So does what is drawn with replacement from few samples.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[int | None, ...], tuple[int, int]] = OrderedDict()  # -> number, step
        self._n = 0
        self._is_habit = False

    def add(self, batch: Sequence[Reading], step: int) -> Again | None:
        """Take in the next batch; what it repeats, if none did before and it is not a new pass over all."""
        if any(row.summary.min is None for row in batch):  # not finite: what is broken is alike
            return None
        key = tuple(row.digest for row in batch)
        known, n = self._seen.get(key), self._n
        self._n += 1
        self._seen[key] = n, step
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        if known is None or self._is_habit:
            return None
        self._is_habit = True  # from here on it is known
        is_new_pass = known[0] == 0 and n > 1
        if n < KNOWN or is_new_pass:
            return None
        return Again(step=known[1], n_back=n - known[0], n_before=n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A field of the batch whose values are not as they were."""

    what: str  # size, spread, mean, constant
    now: float
    usual: float


@dataclass(slots=True, kw_only=True)
class Field:
    """One tensor of the batch, over micro-batches."""

    size: Series = field(default_factory=Series)  # root mean square
    narrow: Series = field(default_factory=Series)  # 1 / spread
    away: Series = field(default_factory=Series)  # mean, from the usual mean, in its usual errors
    means: deque[float] = field(default_factory=lambda: deque[float](maxlen=_WINDOW))
    spreads: deque[float] = field(default_factory=lambda: deque[float](maxlen=_WINDOW))
    n: int = 0
    n_constant: int = 0
    highest: float = -math.inf

    def add(self, row: Reading) -> Change | None:
        """Take in its values; how they differ from those before, if they do."""
        s = row.summary
        if s.n < _LEAST or s.min is None or s.max is None:
            return None
        mean = s.sum / s.n
        spread = math.sqrt(max(0.0, s.sumsq / s.n - mean * mean))
        size = math.sqrt(s.sumsq / s.n)
        self.n += 1
        if s.min == s.max:
            self.n_constant += 1
            is_mask = "float" not in row.dtype and self.highest <= 1.0
            is_new = self.n > KNOWN and self.n_constant == 1 and not is_mask
            return Change(what="constant", now=s.min, usual=_middle(self.spreads)) if is_new else None
        usual_mean, usual_spread = (_middle(self.means), _middle(self.spreads)) if self.means else (mean, spread)
        change = None
        if "float" in row.dtype and (jump := self.size.add(size)) is not None:
            change = Change(what="size", now=size, usual=jump.usual)
        if "float" in row.dtype and (jump := self.narrow.add(1.0 / spread if spread else None)) is not None:
            change = change or Change(what="spread", now=spread, usual=1.0 / jump.usual)
        away = abs(mean - usual_mean) / usual_spread if usual_spread else 0.0
        errors = away * math.sqrt(s.n)
        if self.away.add(max(1.0, errors)) is not None and away > _AWAY and errors > _ERRORS:
            change = change or Change(what="mean", now=mean, usual=usual_mean)
        self.highest = max(self.highest, s.max)
        self.means.append(mean)
        self.spreads.append(spread)
        return change


def batches_of(rows: Sequence[Reading]) -> dict[int, list[Reading]]:
    """Rows of the batch by micro-batch: those that each step has, one for each tensor."""
    found: dict[int, list[Reading]] = {}
    for row in rows:
        is_at_all_steps = row.port == FIELD_PORT or row.dtype.startswith(("int", "uint", "bool"))
        if is_at_all_steps and row.site.startswith(BATCH_PREFIX) and row.digest is not None:
            found.setdefault(row.microbatch, []).append(row)
    return found


def _middle(values: Sequence[float] | deque[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
