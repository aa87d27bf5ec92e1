"""The batches of a run against each other: one that comes again, and an order that goes on elsewhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypocenter.detect.replica_rows import ATTEMPT, BATCH_PREFIX, FIELD_PORT, INDICES_PORT, LOADER, WORKER_PORT
from hypocenter.nouns import Reading

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
    """Follows the order of batches.

    Epochs that are not shuffled, one batch that is trained on over and over, and several passes over each batch are
    habits: they come again from the first time that they can. So does what is drawn with replacement from few samples.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[int | None, ...], tuple[int, int]] = OrderedDict()  # -> number, step
        self._n = 0
        self._is_habit = False
        self._order = _Order()

    def resume(self) -> None:
        """The next batch is the first after a checkpoint."""
        self._order.is_resumed = True

    def add(self, batch: Sequence[Reading], step: int) -> Again | Jumped | None:
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
        jumped = self._order.add(known[0] if known else None, step, batch[0].microbatch)
        if known is None or self._is_habit:
            return jumped
        self._is_habit = True  # from here on it is known
        is_new_pass = known[0] == 0 and n > 1
        if n < KNOWN or is_new_pass:
            return None
        return Again(step=known[1], n_back=n - known[0], n_before=n)


@dataclass(slots=True)
class _Order:
    """Places in an order that is the same each time."""

    what: str = "batches"
    is_resumed: bool = False
    _next: int | None = None  # place that would come
    _n: int = 0  # places in order
    _jump: Jumped | None = None  # that the next place is to confirm

    def add(self, first: int | None, step: int, microbatch: int, n: int = 1) -> Jumped | None:
        """Take in the next places, `first` and the `n - 1` after it; None: not known."""
        found = None
        if first is not None and first == self._next:
            found, self._jump = self._jump, None
            self._n = self._n + 1 if found is None else 0
        elif first is not None and self._next is not None and self._n >= KNOWN and self._jump is None:
            self._jump = Jumped(
                step=step,
                microbatch=microbatch,
                n=first - self._next,
                n_before=self._n,
                what=self.what,
                is_resumed=self.is_resumed,
            )
        else:
            self._n, self._jump = 0, None
        self._next = None if first is None else first + n
        self.is_resumed = False
        return found

    def begin(self, n: int) -> None:
        """A new pass begins with `n` places."""
        self._next, self._jump, self.is_resumed = n, None, False


@dataclass(slots=True)
class Loaders:
    """What data loaders say of their batches."""

    _samples: _Order = field(default_factory=lambda: _Order(what="samples"))
    _last: int | None = None  # number of the batch that came last
    _key: tuple[int | None, ...] = ()
    _run: int = 0  # equal batches in a row, each handed out by itself
    _first_again: tuple[int, int] | None = None  # step and micro-batch of the first batch that came again
    _runs: list[int] = field(default_factory=list[int])
    _is_told: bool = False

    def resume(self) -> None:
        """The next batch is the first after a checkpoint."""
        self._samples.is_resumed = True

    def jumped(self, rows: Sequence[Reading], step: int) -> Jumped | None:
        """Where the samples of a loader that goes through its data in order go on elsewhere, but for a new pass."""
        found = None
        for row in rows:
            if row.site == LOADER and row.port == INDICES_PORT and row.summary.min is not None:
                first = int(row.summary.min)
                if first == 0:
                    self._samples.begin(row.summary.n)
                else:
                    found = self._samples.add(first, step, row.microbatch, row.summary.n) or found
        return found

    def copies(self, batch: Sequence[Reading], rows: Sequence[Reading], step: int) -> tuple[int, int, int] | None:
        """(step, micro-batch, workers) where each worker of a stream has made the same batches from the start."""
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
    """Rows of the batch by micro-batch: those that each step has, one for each tensor."""
    found: dict[int, list[Reading]] = {}
    for row in rows:
        is_at_all_steps = row.port == FIELD_PORT or row.dtype.startswith(("int", "uint", "bool"))
        if is_at_all_steps and row.site.startswith(BATCH_PREFIX) and row.digest is not None:
            found.setdefault(row.microbatch, []).append(row)
    return found


def is_resumed(rows: Sequence[Reading]) -> bool:
    """Whether the step is the first after a checkpoint."""
    return any(row.site == ATTEMPT for row in rows)
