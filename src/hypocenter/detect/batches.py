"""The batches of a run against each other: one that comes again, and an order that goes on elsewhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hypocenter.detect.replica_rows import ATTEMPT, BATCH_PREFIX, FIELD_PORT, INDICES_PORT, LOADER, WORKER_PORT
from hypocenter.nouns import Reading

Key: TypeAlias = "tuple[int | None, ...]"
REMEMBERED = 8192  # batches
KNOWN = 32  # batches without the like, before one that is remarked on
_RUNS = 4  # runs of equal batches, one from each worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A batch that was used before."""

    step: int  # where it was used before
    n_back: int  # batches ago
    n_before: int  # batches, none of which had come again


@dataclass(frozen=True, slots=True, kw_only=True)
class Jumped:
    """The order of batches, the same in each pass, or of samples, goes on elsewhere."""

    step: int
    microbatch: int
    n: int  # batches (samples) that were left out; below 0: that come again
    n_before: int  # batches in order, before
    what: str  # batches, samples
    is_resumed: bool


class Repeats:
    """Follow the order of batches, to find one that comes again or a jump.

    Epochs that are not shuffled, one batch that is trained on over and over, and several passes over each batch are
    habits: they come again from the first time that they can. So does what is drawn with replacement from few samples.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[Key, tuple[int, int]] = OrderedDict()  # -> number, step
        self._n = 0
        self._is_habit = False
        self._order = _Order()

    def resume(self) -> None:
        """Note that the next batch is the first after a checkpoint."""
        self._order.is_resumed = True

    def add(self, batch: Sequence[Reading], step: int) -> Again | Jumped | None:
        """Take in the next batch; return what it repeats if none did before and no new pass begins, or a jump."""
        if any(row.summary.min is None for row in batch):  # not finite: what is broken is alike
            return None
        key = tuple(row.digest for row in batch)
        known, n = self._seen.get(key), self._n
        self._n += 1
        self._seen[key] = n, step
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        jumped = self._order.add(key, step, batch[0].microbatch)
        if known is None or self._is_habit:
            return jumped
        self._is_habit = True  # from here on it is known
        is_new_pass = known[0] == 0 and n > 1
        if n < KNOWN or is_new_pass:
            return None
        return Again(step=known[1], n_back=n - known[0], n_before=n)


@dataclass(slots=True)
class _Order:
    """Batches that follow each other in the same order in each pass."""

    is_resumed: bool = False
    _after: dict[Key, Key] = field(default_factory=dict[Key, Key])
    _last: Key | None = None
    _n: int = 0  # batches in order
    _jump: Jumped | None = None  # that the next batch is to confirm

    def add(self, key: Key, step: int, microbatch: int) -> Jumped | None:
        """Take in the next batch; return the jump before it, once the order goes on after that."""
        last, found = self._last, None
        expected = self._after.get(last) if last is not None else None
        if last is None or expected is None:
            if last is not None and len(self._after) < REMEMBERED and not self.is_resumed:
                self._after[last] = key
            self._jump = None
        elif key == expected:
            found, self._jump = self._jump, None
            self._n += 1
        else:
            is_sure = self._n >= KNOWN and self._jump is None
            n = self._distance(expected, key) if is_sure else 0
            if not is_sure and not self.is_resumed:
                self._after[last] = key
            self._jump = (
                Jumped(
                    step=step,
                    microbatch=microbatch,
                    n=n,
                    n_before=self._n,
                    what="batches",
                    is_resumed=self.is_resumed,
                )
                if n
                else None
            )
            self._n = 0
        self._last, self.is_resumed = key, False
        return found

    def _distance(self, expected: Key, key: Key) -> int:
        """Return the number of batches from the expected one to the one that came, below 0: back; 0 if not known."""
        forth, back = self._steps(expected, key), self._steps(key, expected)
        if not forth or not back:
            return forth or -back
        return forth if forth <= back else -back

    def _steps(self, begin: Key, end: Key) -> int:
        at: Key | None = begin
        for n in range(len(self._after)):
            if at == end or at is None:
                return n if at is not None else 0
            at = self._after.get(at)
        return 0


@dataclass(slots=True)
class _Indices:
    """Samples of a loader that reads its data in the order of their indices."""

    is_resumed: bool = False
    _next: int = -1  # index that would come
    _n: int = 0  # batches in order
    _jump: Jumped | None = None  # that the next batch is to confirm

    def add(self, row: Reading, step: int) -> Jumped | None:
        """Take in the next batch; return the jump before it, once the order goes on after that."""
        first, n, n_samples = int(row.summary.min or 0), row.summary.n, int(row.summary.absmax)
        is_over = first == 0 and (n_samples == 0 or self._next > n_samples - n or not self.is_resumed)
        found = None
        if first == self._next or is_over:
            found, self._jump = (self._jump, None) if first == self._next else (None, None)
            self._n += 1
        else:
            is_jump = self._n >= KNOWN and self._jump is None
            self._jump = (
                Jumped(
                    step=step,
                    microbatch=row.microbatch,
                    n=first - self._next,
                    n_before=self._n,
                    what="samples",
                    is_resumed=self.is_resumed,
                )
                if is_jump
                else None
            )
            self._n = 0
        self._next, self.is_resumed = first + n, False
        return found


@dataclass(slots=True)
class Loaders:
    """What data loaders tell of their batches."""

    _indices: _Indices = field(default_factory=_Indices)
    _last: int | None = None  # number of the batch that came last
    _key: Key = ()
    _run: int = 0  # equal batches in a row, each handed out by itself
    _first_again: tuple[int, int] | None = None  # step and micro-batch of the first batch that came again
    _runs: list[int] = field(default_factory=list[int])
    _is_told: bool = False

    def resume(self) -> None:
        """Note that the next batch is the first after a checkpoint."""
        self._indices.is_resumed = True

    def jumped(self, rows: Sequence[Reading], step: int) -> Jumped | None:
        """Return where the samples of a loader that reads in order go on elsewhere, other than for a new pass."""
        found = None
        for row in rows:
            if row.site == LOADER and row.port == INDICES_PORT:
                found = self._indices.add(row, step) or found
        return found

    def copies(self, batch: Sequence[Reading], rows: Sequence[Reading], step: int) -> tuple[int, int, int] | None:
        """Return (step, micro-batch, workers) where each worker of a stream makes the same batches; else None."""
        told = next((row for row in rows if row.site == LOADER and row.port == WORKER_PORT), None)
        if told is None or self._is_told or told.microbatch != batch[0].microbatch:
            return None
        number, key = int(told.summary.sum), tuple(row.digest for row in batch)
        if self._last is not None and number == self._last + 1:
            if key == self._key:
                self._run += 1
                self._first_again = self._first_again or (step, told.microbatch)
            else:
                self._runs.append(self._run)
                self._run = 1
        else:
            self._run, self._runs, self._first_again = 1, [], None
        self._last, self._key = number, key
        if len(self._runs) < _RUNS:
            return None
        self._is_told = True
        is_each = set(self._runs) == {told.summary.n} and self._first_again is not None
        return (*self._first_again, told.summary.n) if is_each and self._first_again else None


def batches_of(rows: Sequence[Reading]) -> dict[int, list[Reading]]:
    """Return the rows of the batch by micro-batch: those that each step has, one for each tensor."""
    found: dict[int, list[Reading]] = {}
    for row in rows:
        is_at_all_steps = row.port == FIELD_PORT or row.dtype.startswith(("int", "uint", "bool"))
        if is_at_all_steps and row.site.startswith(BATCH_PREFIX) and row.digest is not None:
            found.setdefault(row.microbatch, []).append(row)
    return found


def ranks_resumed(rows: Sequence[Reading]) -> int:
    """Return the number of ranks of the job if this is the first step after a checkpoint; else 0."""
    return next((max(1, row.summary.n) for row in rows if row.site == ATTEMPT), 0)
