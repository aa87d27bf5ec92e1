"""The rows of a recording step by step, as columns of numbers: what distances are taken of.

A run of one process is streamed: a step is in memory at a time. Rows of several ranks are merged into logical tensors
first (diagnose.logical); a tensor that every rank has of its own keeps its rank as `lane`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Queue
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.compare.comparison import Spot
from hypocenter.compare.ranks import Found, of_job
from hypocenter.detect.bookkeeping import is_bookkeeping
from hypocenter.diagnose import logical
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.nouns import LACKS
from hypocenter.record.reader import RecordedRun

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Sketches = npt.NDArray[np.float32]
LACKS_BIT = {word: 1 << i for i, word in enumerate(LACKS)}
CALIBRATION = "calibrate["  # how `op` of a perturbed replay's rows begins
GRAPH = "Graph."  # how `op` of an imported graph's operators begins: each is a site of its own, and compared
SKETCH_LENGTH = 256  # numbers of a sketch (summary.sketch: K * K)
_COUNTS = ("n", "n_nan", "n_posinf", "n_neginf", "n_hist")
_VALUES = ("min", "max", "absmax", "sum", "sumsq")
_SAME = ("phase", "site", "port", "call", "microbatch", "dtype", "op", "recompute", "replay", "literal_inf")
COLUMNS = ("step", *_SAME, "order", *_COUNTS, *_VALUES, "digest", "sketch", "lacks")
_TOLD_BY = ("phase", "site", "port", "call", "op", "recompute", "replay")  # whether a row is compared, and what it is
# ports: seen again as `grad`
_NOT_COMPARED = pa.array(["scaled_grad", "grad_local", "grad_reduced", "grad_made", "grad_used"])
_OF_SCALER = "loss_scale."  # how sites begin of what a loss scaler has beside its scale
T = TypeVar("T")
_AHEAD = 2  # batches that wait
KEY = ("phase", "site", "port", "call")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """One step of one run. Columns of equal length; rows in execution order."""

    step: int
    spot: Ints  # number of the spot (Spots)
    microbatch: Ints
    lane: Ints  # rank, of a tensor that every rank has of its own; else 0
    order: Ints
    dtype: npt.NDArray[np.object_]
    counts: dict[str, Ints]
    values: dict[str, Reals]  # NaN: none
    digest: Ints
    has_digest: Flags
    literal_inf: Flags
    is_bound: Flags  # a sum of parts whose values are not known: only bounds
    sketch: Sketches | None = None  # of the rows `sketched`, one a row
    sketched: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    calibration: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # of a perturbed replay: which; else -1
    lacks: Ints | None = None  # of imported rows: bits of LACKS_BIT; None: nothing is lacking anywhere

    def __len__(self) -> int:
        return len(self.spot)

    @property
    def own(self) -> StepRows:
        """The rows of the run itself, without perturbed replays."""
        return self.take(np.flatnonzero(self.calibration < 0)) if self.has_calibration else self

    @property
    def calibrations(self) -> list[StepRows]:
        """The rows of each perturbed replay."""
        numbers = np.unique(self.calibration[self.calibration >= 0]) if self.has_calibration else []
        return [self.take(np.flatnonzero(self.calibration == number)) for number in numbers]

    @property
    def has_calibration(self) -> bool:
        """Whether rows of perturbed replays are among these."""
        return bool((self.calibration >= 0).any())

    def take(self, at: Ints) -> StepRows:
        """Return the rows with these indices."""
        place = np.full(len(self), -1, np.int64)
        place[self.sketched] = np.arange(len(self.sketched))
        wanted = place[at]
        held = np.flatnonzero(wanted >= 0)
        return StepRows(
            step=self.step, spot=self.spot[at], microbatch=self.microbatch[at], lane=self.lane[at],
            order=self.order[at], dtype=self.dtype[at], counts={n: c[at] for n, c in self.counts.items()},
            values={n: c[at] for n, c in self.values.items()}, digest=self.digest[at],
            has_digest=self.has_digest[at], literal_inf=self.literal_inf[at], is_bound=self.is_bound[at],
            sketch=None if self.sketch is None else self.sketch[wanted[held]], sketched=held,
            calibration=self.calibration[at], lacks=None if self.lacks is None else self.lacks[at],
        )  # fmt: skip

    def without(self, word: str) -> Flags:
        """Return which rows lack what a word of nouns.LACKS says."""
        if self.lacks is None:
            return np.zeros(len(self), np.bool_)
        return (self.lacks & LACKS_BIT[word]) != 0


class RunRows:
    """All rows of a recording that are compared, step by step in rising order.

    Args:
        run: the recording.
        spots: gets the spots that are seen.
    """

    def __init__(self, run: RecordedRun, spots: Spots) -> None:
        self.spots = spots
        self.problems: list[str] = [*run.early_problems, *run.rolled_up]
        self.n_rows = 0
        self.over_ranks = Found()
        self.has_digests = True  # that can be compared with those of the other run
        self._run = run
        self._keys: list[pa.Array] = []  # of the step before: most steps have the same rows
        self._codes: tuple[Ints, Ints, npt.NDArray[np.object_]] | None = None

    def batches(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield (step, its rows in COLUMNS and `lane`) with rising steps; rows that are not compared are left out."""
        stream = self._run.stream(self._run.ranks[0], COLUMNS) if len(self._run.ranks) == 1 else None
        if stream is not None and self._rises():
            compared = Compared()
            for step, table in by_step(ahead(stream)):
                if (kept := compared.of(table)).num_rows:
                    yield step, kept
            self.problems += [stream.problem] if stream.problem else []
            return
        yield from self._merged()

    def __iter__(self) -> Iterator[StepRows]:
        for step, table in self.batches():
            self.n_rows += table.num_rows
            yield self.columns(step, table)

    def columns(self, step: int, table: pa.Table) -> StepRows:
        """Return the rows of a step as columns of numbers."""
        batch = _one_batch(table)
        spot, microbatch, dtype = self._coded(batch)
        sketch, sketched = _sketches(batch["sketch"])
        digest = batch["digest"]
        lane = batch["lane"].to_numpy().astype(np.int64) if "lane" in batch.schema.names else np.zeros_like(spot)
        is_bound = _flags(batch["is_bound"]) if "is_bound" in batch.schema.names else np.zeros(len(spot), np.bool_)
        return StepRows(
            step=step, spot=spot, microbatch=microbatch, lane=lane, order=batch["order"].to_numpy(), dtype=dtype,
            counts={name: batch[name].to_numpy() for name in _COUNTS},
            values={name: _reals(batch[name]) for name in _VALUES},
            digest=pc.fill_null(digest, 0).to_numpy() if digest.null_count else digest.to_numpy(),
            has_digest=_flags(digest.is_valid()) & self.has_digests, literal_inf=_flags(batch["literal_inf"]),
            is_bound=is_bound, sketch=sketch, sketched=sketched, calibration=_calibrations(batch["op"]),
            lacks=_lacks(batch),
        )  # fmt: skip

    def _coded(self, batch: pa.RecordBatch) -> tuple[Ints, Ints, npt.NDArray[np.object_]]:
        keys = [batch[name] for name in (*KEY, "microbatch", "dtype")]
        if self._codes is None or not all(new.equals(old) for new, old in zip(keys, self._keys, strict=True)):
            microbatch = batch["microbatch"].to_numpy().astype(np.int64)
            dtype = np.array(batch["dtype"].to_pylist(), np.object_)
            self._keys, self._codes = keys, (self.spots.numbers(batch), microbatch, dtype)
        return self._codes

    def _rises(self) -> bool:
        """Return whether steps were written in rising order; a recording of on-finding steps need not be."""
        stream = self._run.stream(self._run.ranks[0], ("step",))
        last = -1
        for batch in stream or ():
            step = batch["step"].to_numpy()
            if len(step) and (step[0] < last or (np.diff(step) < 0).any()):
                return False
            last = int(step[-1]) if len(step) else last
        return True

    def _merged(self) -> Iterator[tuple[int, pa.Table]]:
        columns = tuple(dict.fromkeys((*COLUMNS, *logical.READS)))
        shelf = RowsByStep(len(self._run.ranks))
        for _, table in self._run.scan(is_compared, columns=columns):
            shelf.put(table)
        one_rank = len(self._run.ranks) == 1
        places = self._run.places
        for step in shelf.steps():
            table = shelf.take(step)
            yield step, table if one_rank else of_job(table, places, found=self.over_ranks)
        shelf.close()
        self.problems += self._run.problems


def by_step(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Cut rows into steps; their steps must rise."""
    waiting: list[pa.RecordBatch] = []
    current: int | None = None
    for batch in batches:
        step = batch["step"].to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(step)) + 1).tolist()] if len(step) else []
        for start, stop in zip(starts, [*starts[1:], len(step)], strict=True):
            if current is not None and step[start] != current:
                yield current, pa.Table.from_batches(waiting)
                waiting = []
            current = int(step[start])
            waiting.append(batch.slice(start, stop - start))
    if current is not None and waiting:
        yield current, pa.Table.from_batches(waiting)


def is_compared(batch: pa.RecordBatch) -> pa.Array:
    """Tell which rows are values of the program: no recompute, no single operator, nothing that we measured."""
    is_ours = pc.equal(batch["recompute"], True)
    is_calibration = pc.starts_with(batch["op"], CALIBRATION)
    is_compared_op = pc.or_(is_calibration, pc.starts_with(batch["op"], GRAPH))
    is_other_op = pc.and_(pc.not_equal(batch["op"], ""), pc.invert(is_compared_op))
    is_replay = pc.and_(batch["replay"], pc.invert(is_calibration))
    is_ours = pc.or_(is_ours, pc.or_(is_other_op, is_replay))
    is_ours = pc.or_(is_ours, pc.or_(is_bookkeeping(batch), pc.is_in(batch["port"], value_set=_NOT_COMPARED)))
    is_ours = pc.or_(is_ours, pc.starts_with(batch["site"], _OF_SCALER))
    return pc.invert(is_ours)


class Compared:
    """Filters the rows that are compared out of one step after another; most steps have the same rows."""

    def __init__(self) -> None:
        self._keys: list[pa.ChunkedArray] = []
        self._keep: pa.ChunkedArray | None = None  # None: all
        self.is_as_before = False  # the last step had the same rows as the one before it

    def of(self, table: pa.Table) -> pa.Table:
        """Return the rows of a step that are compared."""
        keys = [table[name] for name in _TOLD_BY if name in table.column_names]
        self.is_as_before = len(keys) == len(self._keys) and all(map(pa.ChunkedArray.equals, keys, self._keys))
        if not self.is_as_before:
            keep = pa.chunked_array([is_compared(batch) for batch in table.to_batches()])
            self._keys, self._keep = keys, None if pc.all(keep).as_py() else keep.combine_chunks()
        return table if self._keep is None else table.filter(self._keep)


def _lacks(batch: pa.RecordBatch) -> Ints | None:
    """Return for each row of an imported run the bits of what it lacks; None when all have everything."""
    if "lacks" not in batch.schema.names:
        return None
    column = pc.fill_null(batch["lacks"], "").dictionary_encode()
    words = column.dictionary.to_pylist()
    if not any(words):
        return None
    bits = [sum(LACKS_BIT.get(word, 0) for word in set(text.split())) for text in words]
    return np.array(bits, np.int64)[column.indices.to_numpy(zero_copy_only=False)]


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table.combine_chunks().to_batches()[0]


def _reals(column: pa.Array) -> Reals:
    return pc.fill_null(column, float("nan")).to_numpy() if column.null_count else column.to_numpy()


def _flags(column: pa.Array) -> Flags:
    return column.to_numpy(zero_copy_only=False)


def _sketches(column: pa.Array) -> tuple[Sketches | None, Ints]:
    """Return the sketches of rows that have one of the usual length, and which rows these are."""
    if column.null_count == len(column):
        return None, np.empty(0, np.int64)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    held = np.flatnonzero(lengths == SKETCH_LENGTH)
    flat = column.take(pa.array(held)).flatten().to_numpy()
    return flat.reshape(len(held), SKETCH_LENGTH), held


def _calibrations(op: pa.Array) -> Ints:
    """Return which perturbed replay each row belongs to; -1 for rows of the run itself."""
    found = np.full(len(op), -1, np.int64)
    if pc.any(pc.not_equal(op, "")).as_py():
        for i, text in enumerate(op.to_pylist()):
            number = text[len(CALIBRATION) : -1]
            if text.startswith(CALIBRATION) and number.isdigit():
                found[i] = int(number)
    return found


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items in order while a thread reads ahead; its errors are raised here, and it stops with the caller."""
    waiting: Queue[tuple[T | None, BaseException | None, bool]] = Queue(_AHEAD)
    is_over = threading.Event()

    def take() -> None:
        try:
            for item in items:
                waiting.put((item, None, False))
                if is_over.is_set():
                    return
            waiting.put((None, None, True))
        except BaseException as error:
            waiting.put((None, error, True))

    thread = threading.Thread(target=take, name="hypocenter-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error, is_last = waiting.get()
            if error is not None:
                raise error
            if is_last:
                return
            yield item  # pyright: ignore[reportReturnType]
    finally:
        is_over.set()
        while thread.is_alive():  # it may wait for room
            while not waiting.empty():
                waiting.get_nowait()
            thread.join(0.01)


@dataclass(slots=True)
class Spots:
    """Spots of one run in the order in which they were first seen; a spot's number is its place in `known`."""

    known: list[Spot] = field(default_factory=list[Spot])
    _number: dict[Spot, int] = field(default_factory=dict[Spot, int])

    def number_of(self, spot: Spot) -> int:
        """Return the number of a spot; a new one gets the next number."""
        found = self._number.get(spot)
        if found is None:
            found = self._number[spot] = len(self.known)
            self.known.append(spot)
        return found

    def find(self, spot: Spot) -> int:
        """Return the number of a spot, -1 when it was never seen."""
        return self._number.get(spot, -1)

    def numbers(self, batch: pa.RecordBatch) -> Ints:
        """Return for each row of a batch with columns KEY the number of its spot."""
        codes, firsts = distinct([batch[name] for name in KEY])
        rows = batch.select(list(KEY)).take(pa.array(firsts)).to_pylist()
        return np.fromiter((self.number_of(Spot(**row)) for row in rows), np.int64, len(rows))[codes]


def distinct(columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """Return for each row the number of its combination of values, and the first row of each combination."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        indices = column.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False).astype(np.int64)
        joined = codes * (int(indices.max(initial=0)) + 1) + indices
        codes = np.unique(joined, return_inverse=True)[1].astype(np.int64).reshape(-1)
    _, firsts = np.unique(codes, return_index=True)
    return codes, firsts.astype(np.int64)
