"""The rows of a run's batches: copies within a batch, rows that come again, and what no longer belongs together.

A row is known by the tensor of the batch that has the most values a row. A pass is over when nine tenths of all rows
have come; how many there are is known once a second pass has begun. Until then rows that come again are told from a
second pass by what follows them: rows that never came before.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypocenter.detect.replica_rows import BATCH_LOSS, ROW_PLACES
from hypocenter.nouns import Reading

KNOWN = 32  # batches before one that is remarked on
REMEMBERED = 1 << 18  # rows
LEAST = 4  # rows that are remarked on together
CHANCE = 1e-6  # of so many by chance, at the rate of before
OVER = 0.9  # share of all rows after which a pass may be over
_WHOLE = 0.75  # of the rows of a batch: as a rule all of it came before
_MISTAKES = 0.01  # of rows that came with another: copies in the data whose labels differ
_SOON = 4  # batches after a checkpoint in which rows of before are said to come from there


def key_of(batch: Sequence[Reading]) -> Reading | None:
    """The tensor that tells its rows; None where no tensor of the model's has any of at least two values."""
    have = [row for row in batch if row.row_digests and not row.site.startswith(BATCH_LOSS)]
    found = max(have, key=lambda row: math.prod(row.shape[1:]), default=None)
    return found if found is not None and math.prod(found.shape[1:]) > 1 else None


def digests(reading: Reading) -> dict[int, int]:
    """Digest of each row by its place in the batch; 0 of a row whose values are all equal."""
    return {packed % ROW_PLACES: packed // ROW_PLACES for packed in reading.row_digests}


def is_by_chance(n_found: int, n_before: int, n_batches: int) -> bool:
    """Whether so many in one batch are no wonder, after `n_before` in `n_batches`."""
    rate = (n_before + 3.0) / max(1, n_batches)  # an upper bound at 95 % where there was none
    return n_found < LEAST or n_batches < KNOWN or rate**n_found / math.factorial(min(n_found, 100)) > CHANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Rows of one batch that are equal."""

    places: tuple[int, ...]
    n_rows: int  # looked at
    n_batches: int  # before, without the like


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows that came before, in a pass that is not over."""

    step: int  # of the first
    microbatch: int
    n_found: int  # of the rows looked at in these batches
    n_rows: int
    n_batches: int  # in which they came
    places: tuple[int, ...]  # in the first of them
    before: tuple[int, ...]  # steps in which these rows were used
    left_out: float | None  # share of all rows that had not come yet; None: not known
    is_resumed: bool


@dataclass(slots=True)
class _Pending:
    step: int
    microbatch: int
    places: tuple[int, ...]
    before: tuple[int, ...]
    is_resumed: bool
    is_whole: bool  # no batch of it holds a row that is new
    n_found: int = 0
    n_rows: int = 0
    n_batches: int = 0
    n_known: int = 0  # rows of the pass, before it


@dataclass(slots=True)
class RowTrack:
    """Follows rows over batches."""

    _copies: int = 0  # in all batches
    _n: int = 0
    _turn: int = 0  # number of the pass
    _n_turn: int = 0  # rows of it
    _n_all: int | None = None  # rows of a whole pass
    _again: int = 0  # rows that came again, in all batches
    _seen: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict[int, tuple[int, int]])  # pass, step
    _pending: _Pending | None = None
    _since: int | None = None  # batches since a checkpoint
    _has_forgotten: bool = False

    def resume(self) -> None:
        """The next batch is the first after a checkpoint."""
        self._since = 0

    def copies(self, rows: dict[int, int]) -> Copies | None:
        """Rows of a batch that are equal, where that is new."""
        n_each = Counter(digest for digest in rows.values() if digest)
        places = tuple(place for place, digest in sorted(rows.items()) if n_each[digest] > 1)
        n = sum(n_each.values()) - len(n_each)
        is_new = not is_by_chance(n, self._copies, self._n)
        self._copies += n
        return Copies(places=places, n_rows=len(rows), n_batches=self._n) if is_new else None

    def add(self, rows: dict[int, int], step: int, microbatch: int) -> Rows | None:
        """Take in the next batch, after `copies`; rows that came again, once it is known that they did not have to."""
        found: Rows | None = None
        told = [(place, digest) for place, digest in sorted(rows.items()) if digest]
        again = [(place, digest) for place, digest in told if self._seen.get(digest, (-1, 0))[0] == self._turn]
        if told and not self._has_forgotten:
            found = self._judge(told, again, step, microbatch)
            first = again[0][0] if again else -1
            for place, digest in told:
                known = self._seen.get(digest)
                turn = self._turn if self._turn == 0 or place >= first else self._turn - 1
                if known is None or known[0] < turn:
                    self._seen[digest] = max(turn, 0), step
                    self._n_turn += turn == self._turn
            while len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
                self._has_forgotten = True
        self._n += 1
        self._since = None if self._since is None or self._since >= _SOON else self._since + 1
        return found

    def _judge(
        self, told: list[tuple[int, int]], again: list[tuple[int, int]], step: int, microbatch: int
    ) -> Rows | None:
        if not again:
            return self._settle()
        pending = self._pending
        is_whole = len(again) >= _WHOLE * len(told)
        if self._n_all is not None and self._n_turn >= OVER * self._n_all:
            self._begin_turn()
            return None
        if pending is None:
            if is_by_chance(len(again), self._again, self._n):
                self._again += len(again)
                return None
            pending = self._pending = _Pending(
                step,
                microbatch,
                tuple(place for place, _ in again),
                tuple(sorted({self._seen[digest][1] for _, digest in again})),
                self._since is not None,
                True,
                n_known=self._n_turn,
            )
        elif not is_whole and pending.n_batches == 1 and not pending.is_resumed:
            self._again += pending.n_found + len(again)  # they go on coming again: drawn with replacement
            self._pending = None
            return None
        pending.is_whole &= is_whole or pending.n_batches == 0
        pending.n_found += len(again)
        pending.n_rows += len(told)
        pending.n_batches += 1
        if pending.is_resumed and not (is_whole and pending.is_whole) and pending.n_batches > 1:
            return self._settle()
        if pending.is_whole and self._n_all is None and pending.n_found >= OVER * pending.n_known:
            self._n_all = pending.n_known
            self._begin_turn(pending.n_found)
        return None

    def _begin_turn(self, n_rows: int = 0) -> None:
        self._turn += 1
        self._n_turn, self._pending = n_rows, None

    def _settle(self) -> Rows | None:
        """What came again did so within a pass, for new rows follow it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        self._again += pending.n_found
        left_out = None if self._n_all is None else max(0.0, 1.0 - pending.n_known / self._n_all)
        return Rows(
            step=pending.step,
            microbatch=pending.microbatch,
            n_found=pending.n_found,
            n_rows=pending.n_rows,
            n_batches=pending.n_batches,
            places=pending.places,
            before=pending.before,
            left_out=left_out,
            is_resumed=pending.is_resumed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """Rows that came with others of another tensor than before."""

    site: str
    places: tuple[int, ...]
    n_known: int  # rows of the batch of which it is known what they came with
    n_before: int  # rows that came again with the same


@dataclass(slots=True)
class Pairs:
    """What each row came with in the other tensors of the batch."""

    _n_batches: int = 0
    _known: OrderedDict[tuple[str, int], tuple[int, int]] = field(
        default_factory=OrderedDict[tuple[str, int], tuple[int, int]]
    )  # what came with it, and in which batch first
    _n: dict[str, list[int]] = field(default_factory=dict[str, list[int]])  # site -> rows with the same, with others

    def add(self, key: Reading, batch: Sequence[Reading]) -> list[Parted]:
        """Take in the next batch; what belonged together in all batches before, and no longer does."""
        found: list[Parted] = []
        rows = {place: digest for place, digest in digests(key).items() if digest}
        self._n_batches += 1
        n_batch = self._n_batches
        for other in batch:
            if other is key or not other.row_digests:
                continue
            n_each = self._n.setdefault(other.site, [0, 0])
            same, apart = 0, list[int]()
            for place, digest in digests(other).items():
                if place not in rows:
                    continue
                known = self._known.setdefault((other.site, rows[place]), (digest, n_batch))
                if known[1] == n_batch:
                    continue
                if known[0] == digest:
                    same += 1
                else:
                    apart.append(place)
            n_same, n_apart = n_each
            is_bound = n_same >= KNOWN and n_apart <= n_same * _MISTAKES
            if is_bound and len(apart) >= max(2.0, (same + len(apart)) / 4):
                known_here = same + len(apart)
                found.append(Parted(site=other.site, places=tuple(apart), n_known=known_here, n_before=n_same))
            n_each[0] += same
            n_each[1] += len(apart)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return found
