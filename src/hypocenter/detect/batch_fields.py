"""The tensors of a batch, each against those of the batches before: sizes, shares of its elements, its range."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypocenter.detect.batch_rows import digests
from hypocenter.detect.spikes import Series
from hypocenter.nouns import Reading

KNOWN = 32  # batches before one that is remarked on
WINDOW = 32  # batches that tell what is usual of a field
LEAST = 8  # elements of a tensor whose values are looked at
AWAY = 0.25  # of its usual spread: a mean that moves less is not remarked on
ERRORS = 6.0  # of a mean of so many independent values
SHARE = 0.2  # a share that changes by less is not remarked on
_SPREADS, _RECORDS = 6.0, 1.5  # as in hypocenter.detect.spikes
BOUND = 0.9  # share of labels that are the inputs: it is no chance
_LOOKED_AT = 256  # elements that shares are of, at most
_FEW = 64  # elements of which a share tells little
CHANCE = 1e-9  # what may happen by chance once in so many batches is no law
_SEEN = 14.0  # elements that a batch has on average: none in one of a million
LOWEST, HIGHEST, STILL, DIFFERENT, INPUT, NEXT_INPUT, ROW, CLASSES = range(8)  # of Reading.shares; from the last on
CONSTANT_ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A field of the batch whose values are not as they were."""

    what: str  # size, spread, mean, constant, alike (that by chance), row, lowest, highest, still, different, ...
    now: float
    usual: float
    row: int | None = None  # of the batch, that holds it
    n_before: int = 0


@dataclass(slots=True)
class Share:
    """A number between 0 and 1 for each batch, and what is usual of it."""

    past: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))
    _largest: float = 0.0  # distances from the usual
    _second: float = 0.0

    def add(self, value: float, n: int) -> float | None:
        """Take in the next value, a share of `n` elements; return what was usual if it is far from that, else None."""
        past, found = self.past, None
        if len(past) == WINDOW:
            usual = _middle(past)
            away, spread = abs(value - usual), _middle([abs(each - usual) for each in past])
            error = math.sqrt(max(usual * (1.0 - usual), 1.0 / n) / n)
            if away > max(SHARE, _SPREADS * spread, ERRORS * error, _RECORDS * self._second):
                found = usual
            if away > self._largest:
                self._largest, self._second = away, self._largest
            else:
                self._second = max(self._second, away)
        past.append(value)
        return found


@dataclass(slots=True, kw_only=True)
class Field:
    """One tensor of the batch, over micro-batches."""

    size: Series = field(default_factory=Series)  # root mean square
    narrow: Series = field(default_factory=Series)  # 1 / spread
    away: Series = field(default_factory=Series)  # mean, from the usual mean, in its usual errors
    peak: Series = field(default_factory=Series)  # largest magnitude
    means: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))
    spreads: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))
    shares: dict[str, Share] = field(default_factory=dict[str, Share])
    classes: deque[tuple[float, ...]] = field(default_factory=lambda: deque[tuple[float, ...]](maxlen=WINDOW))
    ends: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])  # since when it is so
    n: int = 0
    n_constant: int = 0
    highest: float = -math.inf

    def add(self, row: Reading) -> Change | None:
        """Take in the next values of the field; return how they differ from those before, or None."""
        s = row.summary
        if s.n < LEAST or s.min is None or s.max is None:
            return None
        mean = s.sum / s.n
        spread = math.sqrt(max(0.0, s.sumsq / s.n - mean * mean))
        self.n += 1
        if s.min == s.max:
            self.n_constant += 1
            is_mask = "float" not in row.dtype and self.highest <= 1.0
            is_new = self.n > KNOWN and self.n_constant == 1 and not is_mask
            what = "constant" if self._chance_of_one(s.n) < CHANCE else "alike"
            return Change(what=what, now=s.min, usual=_middle(self.spreads)) if is_new else None
        change = self._inside(row) or self._moments(row, mean, spread)
        self.highest = max(self.highest, s.max)
        self.means.append(mean)
        self.spreads.append(spread)
        return change

    def _chance_of_one(self, n: int) -> float:
        """Return how likely `n` independent elements are all equal, by the shares so far; 0 if these are not known."""
        ends = [_middle(self.shares[name].past) for name in ("lowest", "highest") if name in self.shares]
        classes = [sum(each) / len(self.classes) for each in zip(*self.classes, strict=True)]
        return max([*ends, *classes], default=0.0) ** n

    def _moments(self, row: Reading, mean: float, spread: float) -> Change | None:
        s = row.summary
        size, peak = math.sqrt(s.sumsq / s.n), s.absmax
        usual_mean, usual_spread = (_middle(self.means), _middle(self.spreads)) if self.means else (mean, spread)
        change = None
        if "float" in row.dtype:
            higher, larger = self.peak.add(peak), self.size.add(size)
            if higher is not None and row.shares and (larger is None or higher.octaves > 1.0 + larger.octaves):
                change = Change(what="row", now=peak, usual=higher.usual, row=int(row.shares[ROW]))
            elif larger is not None:
                change = Change(what="size", now=size, usual=larger.usual)
            if (jump := self.narrow.add(1.0 / spread if spread else None)) is not None:
                change = change or Change(what="spread", now=spread, usual=1.0 / jump.usual)
        away = abs(mean - usual_mean) / usual_spread if usual_spread else 0.0
        errors = away * math.sqrt(s.n)
        if self.away.add(max(1.0, errors)) is not None and away > AWAY and errors > ERRORS:
            change = change or Change(what="mean", now=mean, usual=usual_mean)
        return change

    def _inside(self, row: Reading) -> Change | None:
        """Return a change in what its elements are: ends, classes, ties to inputs; of rows, how many are constant."""
        shares, found = row.shares, list[Change]()
        if not shares:
            return None
        for name, at in (("input", INPUT), ("next input", NEXT_INPUT)):
            known = self.shares.setdefault(name, Share())
            lowest = min(known.past, default=0.0)
            is_bound = len(known.past) == WINDOW and lowest >= BOUND
            if is_bound and shares[at] < lowest / 2:
                found.append(Change(what=name, now=shares[at], usual=lowest, n_before=self.n - 1))
            known.past.append(shares[at])
        is_float, n = "float" in row.dtype, min(row.summary.n, _LOOKED_AT)
        for name, end, at in (("lowest", row.summary.min, LOWEST), ("highest", row.summary.max, HIGHEST)):
            found += self._share(name, shares[at], n)
            if end is not None:
                found += self._range(name, end, row.summary.n)
        found += self._share("still", shares[STILL], n)
        told = digests(row)
        if len(set(told.values())) == len(told):  # else rows are copies, and that is told of them
            found += self._share("different", shares[DIFFERENT], n)
        if not is_float and row.dtype != "bool":
            classes = shares[CLASSES:]
            if len(self.classes) == WINDOW:
                usual = [sum(each) / WINDOW for each in zip(*self.classes, strict=True)]
                apart = sum(abs(a - b) for a, b in zip(classes, usual, strict=True)) / 2
                found += self._share("classes", apart, n)
            self.classes.append(classes)
        if len(told) > 1:
            n_constant = sum(not digest for digest in told.values())
            found += self._share(CONSTANT_ROWS, n_constant / len(told), len(told))
        return found[0] if found else None

    def _share(self, name: str, value: float, n: int) -> list[Change]:
        if n < _FEW and name != CONSTANT_ROWS:
            self.shares.setdefault(name, Share()).past.append(value)
            return []
        usual = self.shares.setdefault(name, Share()).add(value, n)
        return [] if usual is None else [Change(what=name, now=value, usual=usual, n_before=self.n - 1)]

    def _range(self, name: str, end: float, n: int) -> list[Change]:
        """Return a change if an end of the range was the same in all batches, for more than a few elements of each."""
        known, since = self.ends.get(name, (end, self.n))
        self.ends[name] = (end, self.n) if end != known else (known, since)
        if end == known or self.n - since < KNOWN or _middle(self.shares[name].past) * n < _SEEN:
            return []
        return [Change(what=f"{name} is", now=end, usual=known, n_before=self.n - since)]


def _middle(values: Sequence[float] | deque[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
