"""One rank's rows through the rules over one rank: columns first, nouns only where something is unusual.

A walk over the rank's file keeps the rows that wake a rule, and tells series of numbers from which other rules see that
they have nothing to find. Only where that is not so the file is walked again, for all rows that rules read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from hypocenter.detect.batch_series import BatchSeries
from hypocenter.detect.columns import Bools, Columns, Ints, Kinds, mask_of
from hypocenter.detect.engine import LARGE_HALF, SCALARS, Engine, Reads
from hypocenter.detect.law_rows import BALANCED
from hypocenter.detect.misuse import STILL, TRAINED
from hypocenter.detect.peaks import NEAR_LIMIT
from hypocenter.detect.rank_series import RankSeries
from hypocenter.detect.replica_rows import BATCH_PREFIX, UNWRAPPED
from hypocenter.detect.step_columns import StepColumns
from hypocenter.detect.window import KEPT_RECORDS
from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.reader import RecordedRun

# ports that begin so are for rules over ranks alone
OVER_RANKS = ("replica", "grad_local", "grad_reduced", "grad_made", "grad_used")


@dataclass(slots=True, kw_only=True)
class RankLook:
    """What the rules over one rank found, and the rank's records."""

    rank: int
    records: StepColumns
    findings: list[Finding] = field(default_factory=list[Finding])
    still: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # counts of parameters: site, n
    is_trusted: bool = True  # else what observers of the walk have seen does not count


class RankWalk:
    """Looks at the batches of rows of one rank, and tells which rows to keep.

    Args:
        reads: what rules read.
        whole: steps of which all rows are wanted.
        keeps_all: of the rows that rules read, not only those that wake one.
    """

    def __init__(self, reads: Collection[Reads], whole: Ints, *, keeps_all: bool = False) -> None:
        self.batches = BatchSeries()
        self.bad_steps: list[Ints] = []
        self._reads, self._whole, self._keeps_all = frozenset(reads), whole, keeps_all

    def take(self, columns: Columns) -> Bools:
        """Take the next batch; return which of its rows to keep."""
        kinds = columns.kinds
        own = ~(kinds.begins("port", *OVER_RANKS) | kinds.equal("port", BALANCED) | kinds.equal("site", UNWRAPPED))
        of_batches = kinds.equal("phase", "data") & kinds.begins("site", BATCH_PREFIX) & own
        if "batch" in self._reads:
            self.batches.add(columns, of_batches)
        is_bad = columns.is_nonfinite
        if is_bad.any():
            of_step = kinds.equal("phase", "grad") | (kinds.equal("phase", "loss") & kinds.equal("site", "loss"))
            self.bad_steps.append(columns.steps[is_bad & columns.rows(of_step)])
        taken = self._kinds_that_wake(kinds)
        if self._keeps_all:
            taken |= kinds.equal("port", "value") if "scalar" in self._reads else False
            taken |= kinds.equal("phase", "optimizer") if "optimizer" in self._reads else False
            taken |= of_batches if "batch" in self._reads else False
        return columns.rows(taken & own) | (self._rows_that_wake(columns) & columns.rows(own))

    def _kinds_that_wake(self, kinds: Kinds) -> Bools:
        """Return which kinds of rows wake a rule by their words (phase, site, port)."""
        reads = self._reads
        is_plain = kinds.equal("port", "value") & kinds.equal("site", *SCALARS)
        found = np.full(len(is_plain), "all" in reads)
        if "scaler" in reads:
            found |= kinds.equal("phase", "scaler")
        if "optimizer" in reads:
            found |= kinds.equal("phase", "optimizer") & ~is_plain
        if "scalar" in reads:
            found |= kinds.equal("port", "value") & ~is_plain
        return found

    def _rows_that_wake(self, columns: Columns) -> Bools:
        """Return which rows wake a rule by their numbers."""
        reads, kinds = self._reads, columns.kinds
        found = columns.is_nonfinite.copy() if "nonfinite" in reads else np.zeros(columns.n, np.bool_)
        is_half = kinds.equal("dtype", "float16")
        if reads & {"large-half", "half-grad"} and is_half.any():
            if "large-half" in reads:
                found |= columns.rows(is_half) & (columns.numbers("absmax") > LARGE_HALF)
            if "half-grad" in reads:
                of_grad = columns.rows(is_half & kinds.equal("phase", "backward", "grad"))
                found |= of_grad & (columns.numbers("n_hist") > 0)
        if "near-limit" in reads:
            found |= _near_limit(columns)
        if "zero" in reads:
            n_hist = columns.numbers("n_hist")
            found |= (n_hist > 0) & (columns.numbers("n_zero") == n_hist)
        if len(self._whole):
            found |= np.isin(columns.steps, self._whole)
        return found


def _near_limit(columns: Columns) -> Bools:
    index, words = columns.kinds.words("dtype")
    limits = np.array([NEAR_LIMIT.get(word, np.inf) for word in words])[index]
    if not np.isfinite(limits).any():
        return np.zeros(columns.n, np.bool_)
    return columns.numbers("absmax") > limits[columns.kind]


def look_at(
    recorded: RecordedRun,
    rank: int,
    engine: Engine,
    *,
    whole: Ints | None = None,
    beside: Callable[[Columns], Bools | None] | None = None,
    thin: Callable[[pa.Table, StepColumns], pa.Table] | None = None,
) -> RankLook:
    """Ask the rules of an engine about one rank.

    Args:
        recorded: an open recording.
        rank: of it.
        engine: its rules; it forgets the rank afterwards.
        whole: steps of which all rows are wanted.
        beside: sees each batch as well.
        thin: leaves rows out that tell nothing new.
    """
    whole = np.zeros(0, np.int64) if whole is None else whole
    reads = frozenset(engine.reads) - {"imported"}
    walk = RankWalk(reads, whole)

    def take(batch: pa.RecordBatch) -> pa.Array:
        columns = Columns(batch)
        if beside is not None:
            beside(columns)
        return mask_of(walk.take(columns))

    kept = recorded.walk(rank, take)
    look = RankLook(rank=rank, records=StepColumns(recorded.record_table(rank)), is_trusted=kept is not None)
    bad = np.concatenate([np.zeros(0, np.int64), *walk.bad_steps])
    codes = _asked(engine, RankSeries(look.records, bad, walk.batches))
    if kept is None or any(engine.rules[code].reads for code in codes.always):
        everything = RankWalk(reads, whole, keeps_all=True)
        kept = recorded.walk(rank, lambda batch: mask_of(everything.take(Columns(batch))))
    if kept is not None:
        kept = kept if thin is None else thin(kept, look.records)
        look.still = _still_in(kept)
    look.findings = list(_found(engine, look, kept, codes))
    engine.forget(rank)
    return look


@dataclass(frozen=True, slots=True, kw_only=True)
class _Codes:
    always: tuple[str, ...]  # rules asked at all steps of this rank
    awake: tuple[str, ...]  # with those that rows wake, in the order of the catalogue


def _asked(engine: Engine, series: RankSeries) -> _Codes:
    quiet = {code for code, rule in engine.rules.items() if rule.quiet is not None and rule.quiet(series)}
    by_rows = {code for code, rule in engine.rules.items() if rule.asked == "rows"}
    codes = [code for code in engine.rules if code not in quiet]
    return _Codes(always=tuple(c for c in codes if c not in by_rows), awake=tuple(codes))


def _found(engine: Engine, look: RankLook, kept: pa.Table | None, codes: _Codes) -> Iterator[Finding]:
    """Yield the findings of one rank, by step."""
    readings = _by_step(kept)
    records, waking = look.records, kept["step"].to_numpy() if kept is not None else np.zeros(0, np.int64)
    awake = np.union1d(records.steps[records.is_unusual], waking)
    steps = np.union1d(records.steps, awake) if codes.always else awake
    passed = 0
    for step, is_awake in zip(steps.tolist(), np.isin(steps, awake).tolist(), strict=True):
        index = int(np.searchsorted(records.steps, step))
        has_record = index < len(records) and records.steps[index] == step
        if index > passed:
            engine.pass_by(look.rank, _Passed(records, max(passed, index - KEPT_RECORDS), index))
        passed = index + has_record
        record = records.nth(index) if has_record else None
        yield from engine.ask(codes.awake if is_awake else codes.always, look.rank, step, record, readings(step))


@dataclass(frozen=True, slots=True)
class _Passed:
    """A sequence of records that are made when they are looked at."""

    records: StepColumns
    start: int
    stop: int

    def __iter__(self) -> Iterator[StepRecord]:
        return self.records.between(self.start, self.stop)


def _by_step(kept: pa.Table | None) -> Callable[[int], Sequence[Reading]]:
    """Return a function that gives the readings of a step, in the order they were written."""
    from hypocenter.record.schema import readings_from

    found: dict[int, list[Reading]] = {}
    for reading in readings_from(kept) if kept is not None else ():
        found.setdefault(reading.step, []).append(reading)
    return lambda step: found.get(step, ())


def _still_in(kept: pa.Table) -> list[tuple[str, int]]:
    if not kept.num_rows:
        return []
    sites, sums = kept["site"].to_pylist(), kept["sum"].to_pylist()
    return [(site, int(value)) for site, value in zip(sites, sums, strict=True) if site in (TRAINED, STILL)]
