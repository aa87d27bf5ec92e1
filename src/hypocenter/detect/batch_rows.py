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
_SURE = 4  # batches in a row: more than a fault of one
_BY_CHANCE = 4.0  # standard deviations
_DRAWN = 0.2  # standard deviations by which counts differ: a quarter of what they do where they are drawn anew
_SOON = 1  # batches after a checkpoint in which rows of before are said to come from there


def key_of(batch: Sequence[Reading]) -> Reading | None:
    """Return the tensor that identifies the rows; None if no tensor given to the model has rows of two or more
    values."""
    have = [row for row in batch if row.row_digests and not row.site.startswith(BATCH_LOSS)]
    found = max(have, key=lambda row: math.prod(row.shape[1:]), default=None)
    return found if found is not None and math.prod(found.shape[1:]) > 1 else None


def digests(reading: Reading) -> dict[int, int]:
    """Digest of each row by its place in the batch; 0 of a row whose values are all equal."""
    return {packed % ROW_PLACES: packed // ROW_PLACES for packed in reading.row_digests}


def is_by_chance(n_found: int, n_before: int, n_batches: int) -> bool:
    """Return whether so many in one batch are no wonder, after `n_before` in `n_batches`."""
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
    """Rows that came again in a pass over the data that is not over."""

    step: int  # of the first
    microbatch: int
    n_found: int  # of the rows looked at in these batches; 0: rows were left out
    n_rows: int
    n_batches: int  # in which they came
    places: tuple[int, ...]  # in the first of them
    before: tuple[int, ...]  # steps in which these rows were used
    left_out: float | None  # share of all rows that had not come yet; None: not known
    is_resumed: bool
    may_be_meant: bool = False  # a first stage of few data, gone through twice, would look the same


@dataclass(slots=True, kw_only=True)
class _Pending:
    """Rows that came again, of which it is not known yet whether they had to."""

    step: int
    microbatch: int
    places: tuple[int, ...]
    before: tuple[int, ...]
    n_known: int  # rows of the pass, before it
    is_resumed: bool
    is_whole: bool = True  # as a rule all rows of its batches came again
    n_found: int = 0
    n_rows: int = 0
    n_batches: int = 0
    rows: set[int] = field(default_factory=set[int])


@dataclass(slots=True)
class RowTrack:
    """Follow rows over batches, to find those that come again too early."""

    _copies: int = 0  # in all batches
    _n: int = 0
    _turn: int = 0  # number of the pass
    _n_turn: int = 0  # rows of it
    _n_all: int | None = None  # rows of a whole pass
    _again: int = 0  # rows that came again within a pass, in all batches
    _seen: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict[int, tuple[int, int]])  # pass, step
    _pending: _Pending | None = None
    _second: _Pending | None = None  # what is taken for the second pass, until nine tenths of it have come
    _n_new: int = 0  # batches in a row of rows that never came before
    _since: int | None = None  # batches since a checkpoint
    _resumed_at: int | None = None  # step of this pass
    _first_at: int | None = None  # the same of the first pass, whose end was sharp
    _n_rows: int = 0  # of the largest batch
    _run: list[tuple[int, set[int]]] = field(default_factory=list[tuple[int, set[int]]])
    """Of the last batches in a row in which rows came again: rows of the pass before it, its own from those on."""
    _has_forgotten: bool = False
    _n_soon: int = 0  # batches whose rows were all used in the step before

    def resume(self, step: int, n_ranks: int) -> None:
        """Note that the next batch is the first after a checkpoint. Of many ranks one may get other rows in each
        pass."""
        self._since, self._resumed_at = (0, step) if n_ranks == 1 else (None, None)

    def copies(self, rows: dict[int, int]) -> Copies | None:
        """Return the rows of a batch that are equal to each other, where that is new; else None."""
        n_each = Counter(digest for digest in rows.values() if digest)
        places = tuple(place for place, digest in sorted(rows.items()) if n_each[digest] > 1)
        n = sum(n_each.values()) - len(n_each)
        is_new = not is_by_chance(n, self._copies, self._n)
        self._copies += n
        return Copies(places=places, n_rows=len(rows), n_batches=self._n) if is_new else None

    def add(self, rows: dict[int, int], step: int, microbatch: int) -> Rows | None:
        """Take in the next batch, after `copies`; return rows that came again once it is sure they did not have to."""
        told = [(place, digest) for place, digest in sorted(rows.items()) if digest]
        found: Rows | None = None
        if told and not self._has_forgotten:
            again = [each for each in told if self._seen.get(each[1], (-1, 0))[0] == self._turn]
            n_new = sum(digest not in self._seen for _, digest in told)
            self._n_rows = max(self._n_rows, len(told))
            self._n_new = self._n_new + 1 if n_new >= _WHOLE * len(told) else 0
            first = again[0][0] if again and not self._run else -1
            here = (self._n_turn, {digest for place, digest in told if place >= first})
            self._run = [*self._run[-2 * _SURE :], here] if again else []
            found = self._judge(told, again, step, microbatch)
            self._remember(told, again[0][0] if again else -1, step)
        self._n += 1
        self._since = None if self._since is None or self._since >= _SOON else self._since + 1
        return found

    def _remember(self, told: list[tuple[int, int]], first: int, step: int) -> None:
        """Remember the rows; those before `first`, the first row of the next pass, belong to the pass before."""
        for place, digest in told:
            known = self._seen.get(digest)
            if known is None or (known[0] < self._turn and place >= first):
                self._seen[digest] = self._turn, step
                self._n_turn += 1
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
            self._has_forgotten = True

    def _judge(
        self, told: list[tuple[int, int]], again: list[tuple[int, int]], step: int, microbatch: int
    ) -> Rows | None:
        second, pending = self._second, self._pending
        is_second_over = second is not None and self._n_turn >= OVER * second.n_known
        if second is not None and is_second_over and not second.is_resumed:
            self._second = second = None
        if second is not None and self._n_new >= _SURE:
            self._second = self._n_all = None
            return self._told(second, may_be_meant=is_second_over)
        if not again:
            self._pending = None
            return self._told(pending) if pending is not None else None
        is_whole = len(again) >= _WHOLE * len(told)
        is_over = self._n_all is not None and self._n_turn >= OVER * self._n_all
        if is_over and (is_whole or pending is not None):
            missing, self._second = self._left_out(len(told)), None
            self._begin_turn(set() if pending is None else pending.rows)
            return missing
        if pending is None:
            is_soon = is_whole and all(step - self._seen[digest][1] <= 1 for _, digest in again)
            self._n_soon += is_soon
            is_habit = is_soon and self._n_soon > 1  # of some steps the batch is used for one update more
            if is_habit or is_by_chance(len(again), self._again, self._n):
                self._again += len(again)
                return None
            pending = self._pending = _Pending(
                step=step,
                microbatch=microbatch,
                places=tuple(place for place, _ in again),
                before=tuple(sorted({self._seen[digest][1] for _, digest in again})),
                n_known=self._n_turn,
                is_resumed=self._since is not None,
            )
        pending.is_whole &= is_whole or not pending.n_batches
        pending.n_found += len(again)
        pending.n_rows += len(told)
        pending.n_batches += 1
        pending.rows.update(digest for _, digest in again)
        return self._go_on(pending) if pending.n_batches > 1 else None

    def _go_on(self, pending: _Pending) -> Rows | None:
        """Judge rows that came again in more than one batch in a row."""
        if pending.is_resumed and (not pending.is_whole or self._n_all is not None):
            self._pending = None
            return self._told(pending)
        if not pending.is_whole:  # they go on coming again: drawn with replacement
            self._again += pending.n_found
            self._pending = None
        elif pending.n_batches < _SURE:
            pass
        elif pending.is_resumed and pending.n_found < OVER * pending.n_rows:
            self._pending = None
            return self._told(pending)
        else:
            if self._n_all is None:
                self._n_all, self._second = self._run[0][0], pending
                self._begin_turn({each for _, rows in self._run for each in rows if each in self._seen})
                return None
            missing, self._second = self._left_out(0, pending.n_known), None
            self._begin_turn(pending.rows)
            return missing
        return None

    def _left_out(self, n_least: int, n_turn: int | None = None) -> Rows | None:
        """Return what was left out if more than a batch of all rows did not come in the ending or the first pass."""
        n_turn = self._n_turn if n_turn is None else n_turn
        step, n_all = self._resumed_at, self._n_all
        if self._first_at is not None and n_all is not None and n_turn + self._n_rows >= len(self._seen):
            step, n_all, n_turn, n_least = self._first_at, len(self._seen), n_all, self._n_rows
            self._n_all = n_all
        if step is None or n_all is None or n_all - n_turn <= max(LEAST, n_least):
            return None
        return Rows(
            step=step,
            microbatch=0,
            n_found=0,
            n_rows=0,
            n_batches=0,
            places=(),
            before=(),
            left_out=1.0 - n_turn / n_all,
            is_resumed=True,
        )

    def _begin_turn(self, rows: set[int]) -> None:
        self._turn += 1
        self._first_at = self._resumed_at if self._turn == 1 and self._again <= _SURE * self._n_rows else None
        self._resumed_at = None
        self._n_turn, self._pending = len(rows), None
        for digest in rows:
            self._seen[digest] = self._turn, self._seen[digest][1]

    def _told(self, pending: _Pending, *, may_be_meant: bool = False) -> Rows:
        """Return the rows that came again within a pass, while others had not come yet."""
        self._again += pending.n_found
        left_out = None if self._n_all is None else max(0.0, 1.0 - pending.n_known / self._n_all)
        if pending.is_resumed:  # a pass begins there
            self._begin_turn(pending.rows)
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
            may_be_meant=may_be_meant,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """Rows that came with others of another tensor than before."""

    site: str
    places: tuple[int, ...]
    n_known: int  # rows of the batch of which it is known what they came with
    n_before: int  # rows that came again with the same
    other_step: int | None  # in which all of them came the one time before: one of both is wrong
    by_chance: float | None = None  # they never belonged together: how many of them chance lets come with the same


@dataclass(slots=True)
class _Companion:
    """What a row of the batch came with."""

    digest: int
    step: int
    n: int = 1  # how often, in a row


@dataclass(slots=True)
class _Site:
    """A tensor beside the one that tells the rows."""

    same: int = 0  # rows that came again with the same
    apart: int = 0  # with others
    n_rows: int = 0  # that are known
    n_first: int = 0  # that were known when the first came again
    companions: Counter[int] = field(default_factory=Counter[int])  # of rows, when each came first
    again: Counter[int] = field(default_factory=Counter[int])  # when they came again

    def by_chance(self, n_batch: int) -> float | None:
        """Return how many rows come with the same by chance, where no more do, at the end of a second pass; else None.

        In it there must be as much of each as in the first pass: what is drawn anew differs by chance in that.
        """
        n = self.same + self.apart
        is_second = self.n_first >= _SURE * n_batch and self.n_rows * OVER <= self.n_first
        if not is_second or n < 2 * KNOWN or not self.n_rows - n_batch <= n <= self.n_rows:
            return None
        moved = sum(abs(count - self.again[each]) for each, count in self.companions.items())
        if moved > _DRAWN * sum(math.sqrt(2.0 * count) for count in self.companions.values()):
            return None
        usual = n * sum((count / self.n_rows) ** 2 for count in self.companions.values())
        most = usual + _BY_CHANCE * math.sqrt(usual)
        return usual if self.same <= most < n / 2 and n - usual >= KNOWN else None


@dataclass(slots=True)
class Pairs:
    """What each row came with in the other tensors of the batch."""

    _known: OrderedDict[tuple[str, int], _Companion] = field(default_factory=OrderedDict[tuple[str, int], _Companion])
    _sites: dict[str, _Site] = field(default_factory=dict[str, _Site])

    def add(self, key: Reading, batch: Sequence[Reading], step: int) -> list[Parted]:
        """Take in the next batch; return what belonged together in all batches before, and no longer does."""
        found: list[Parted] = []
        rows = {place: digest for place, digest in digests(key).items() if digest}
        for other in batch:
            if other is not key and other.row_digests:
                found += self._pair(rows, other, step)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return found or self._never_bound(rows)

    def _never_bound(self, rows: dict[int, int]) -> list[Parted]:
        """Tell where one tensor alone comes by chance: of two, such as another row and a label, each may be drawn
        anew."""
        apart = [(name, site) for name, site in self._sites.items() if site.apart]
        if (
            len(apart) != 1
            or not apart[0][0].startswith(BATCH_LOSS)
            or (usual := apart[0][1].by_chance(len(rows))) is None
        ):
            return []
        name, site = apart[0]
        n, n_same, site.n_first = site.same + site.apart, site.same, 0  # it is told once
        return [Parted(site=name, places=tuple(rows), n_known=n, n_before=n_same, other_step=None, by_chance=usual)]

    def _pair(self, rows: dict[int, int], other: Reading, step: int) -> list[Parted]:
        site = self._sites.setdefault(other.site, _Site())
        same, apart, steps = 0, list[int](), set[int | None]()
        for place, digest in digests(other).items():
            if place not in rows:
                continue
            known = self._known.get((other.site, rows[place]))
            if known is None:
                self._known[other.site, rows[place]] = _Companion(digest, step)
                site.n_rows += 1
                site.companions[digest] += 1
                continue
            if known.step == step:
                continue
            site.again[digest] += 1
            if known.digest == digest:
                same += 1
                known.n += 1
                continue
            apart.append(place)
            steps.add(known.step if known.n == 1 else None)
            known.n -= 1
            if not known.n:
                known.digest, known.step, known.n = digest, step, 1
        n_same, n_apart = site.same, site.apart
        site.same += same
        site.apart += len(apart)
        if same or apart:
            site.n_first = site.n_first if n_same or n_apart else site.n_rows
        is_bound = n_same >= KNOWN and n_apart <= n_same * _MISTAKES
        if not is_bound or len(apart) < max(2.0, (same + len(apart)) / 4):
            return []
        other_step = steps.pop() if len(steps) == 1 else None
        return [
            Parted(
                site=other.site,
                places=tuple(apart),
                n_known=same + len(apart),
                n_before=n_same,
                other_step=other_step,
            )
        ]


@dataclass(slots=True)
class OneRow:
    """Batches of one row only, many times over, whose labels differ."""

    _last: int | None = None  # digest of the row, in the batch before
    _is_told: bool = False

    def add(self, key: Reading, batch: Sequence[Reading]) -> int:
        """Return how many rows the next batch has if the model is given the same for each of them; 0 if it is not.

        Two batches in a row of which that holds, of another row each, whose labels are not the same: what is given on
        purpose to each row, as a grid of points, is given in each batch.
        """
        told = {name: set(digests(row).values()) for row in batch if (name := row.site) and row.row_digests}
        mine = told[key.site]
        given = [each for name, each in told.items() if not name.startswith(BATCH_LOSS)]
        labels = [each for name, each in told.items() if name.startswith(BATCH_LOSS)]
        n = len(key.row_digests or ())
        is_one = n >= LEAST and "float" in key.dtype and all(len(each) == 1 for each in given) and 0 not in mine
        row = next(iter(mine)) if is_one and any(len(each) > 1 for each in labels) else None
        before, self._last = self._last, row
        if self._is_told or row is None or before is None or before == row:
            return 0
        self._is_told = True
        return n
