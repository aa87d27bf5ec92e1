"""What rules find in some ranks of a recording (map), and what is known of the job once all are together (merge).

Merging is associative and does not depend on the order: ranks may be looked at by whatever executor, in whatever parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.catalogue import Broken
from hypocenter.detect import engine
from hypocenter.detect.columns import Bools, Columns, mask_of
from hypocenter.detect.engine import Engine
from hypocenter.detect.group_engine import group_rules
from hypocenter.detect.job_sketch import JobSketch, RankSketch
from hypocenter.detect.law_rows import MADE, PART, USED
from hypocenter.detect.law_sketches import N_RANKS_AT_MOST
from hypocenter.detect.local_rows import REDUCED
from hypocenter.detect.own_laws import OwnLaw
from hypocenter.diagnose.over_ranks import rules_over_ranks
from hypocenter.diagnose.panels import arrow
from hypocenter.diagnose.rank_look import RankLook, look_at
from hypocenter.record.gather import kept_rows
from hypocenter.record.reader import RecordedRun, ranked, with_rank
from hypocenter.record.schema import READINGS, encoded

if TYPE_CHECKING:
    from hypocenter.detect.step_columns import StepColumns

MANY_RANKS = 16  # from here on rows that tell nothing new are left out
FEW_BAD = 4  # gradients that are not finite, of one step of one rank: a rule needs to know whether it is only one
ROWS_OF_TABLE = 50_000
_LAW_PORTS = (MADE, PART, USED)


@dataclass(slots=True, kw_only=True)
class Partial:
    """What came of some ranks."""

    looks: dict[int, RankLook] = field(default_factory=dict[int, RankLook])
    aside: list[pa.Table] = field(default_factory=list)  # few rows of ranks, that rules over ranks read
    sketch: JobSketch | None = None  # None: one rank alone is compared with nobody
    broken: list[Broken] = field(default_factory=list[Broken])  # rules

    def merge(self, other: Partial) -> None:
        """Take in the ranks of another one, of the same job."""
        self.looks |= other.looks
        self.aside += other.aside
        if self.sketch is None:
            self.sketch = other.sketch
        elif other.sketch is not None:
            self.sketch.merge(other.sketch)
        self.broken += other.broken


def get_ready(recorded: RecordedRun, plugins: tuple[str, ...] = ()) -> None:
    """Load all rules, in this process and in its workers at the same time.

    Args:
        recorded: an open recording.
        plugins: files or modules with more rules.
    """
    if recorded.workers is not None:
        recorded.workers.start(partial(_load, plugins=plugins))
    _load(plugins=plugins)


def _load(_worker: int = 0, *, plugins: tuple[str, ...]) -> None:
    engine.rules(plugins)
    group_rules(plugins)


def look_at_job(recorded: RecordedRun, plugins: tuple[str, ...] = ()) -> Partial:
    """Ask about all ranks: map and merge.

    Args:
        recorded: an open recording.
        plugins: files or modules with more rules.
    """
    is_asked = recorded.run.imported is not None and "imported" in Engine(engine.rules(plugins)).reads
    whole = bad_steps(recorded).to_numpy() if is_asked else np.zeros(0, np.int64)
    merged = Partial()
    for part in recorded.over_parts(partial(look_at_ranks, plugins=plugins, whole=whole)):
        merged.merge(part)
    engine.CATALOGUE.learn(merged.broken)
    return merged


def look_at_ranks(
    recorded: RecordedRun, ranks: Sequence[int], *, plugins: tuple[str, ...] = (), whole: np.ndarray | None = None
) -> Partial:
    """Ask the rules over one rank about some ranks, and gather what rules over ranks need to be asked at all.

    Args:
        recorded: an open recording.
        ranks: of it.
        plugins: files or modules with more rules.
        whole: steps of an imported run of which all rows are wanted.
    """
    is_job, own = len(recorded.ranks) > 1, Engine(engine.rules(plugins))
    found = Partial(sketch=JobSketch(recorded.places, recorded.ranks) if is_job else None)
    reads, aside = rules_over_ranks(recorded, plugins).reads, _Aside()
    for rank in ranks:
        beside = Beside(rank, n_ranks=len(recorded.ranks), is_read=bool(reads))
        look = look_at(
            recorded,
            rank,
            own,
            whole=whole,
            beside=beside.add,
            thin=thinned if len(recorded.ranks) >= MANY_RANKS else None,
        )
        found.looks[rank] = look
        if look.is_trusted and reads:
            aside.add(beside.table())
        if found.sketch is not None:
            found.sketch.add(beside.sketch if look.is_trusted else RankSketch(rank=rank, is_odd=True), look.records)
    found.aside = aside.tables()
    found.broken = list(engine.CATALOGUE.broken)
    return found


def thinned(kept: pa.Table, records: StepColumns) -> pa.Table:
    """Without most of the rows that only say of one more gradient's norm that it was not finite.

    After a NaN every gradient of every rank has one at every step. Of steps whose records count them FEW_BAD stay.

    Args:
        kept: the rows for rules over one rank.
        records: of its steps.
    """
    if not kept.num_rows:
        return kept
    is_norm = pc.and_(pc.equal(kept["phase"], arrow("grad")), pc.equal(kept["port"], arrow("grad")))
    is_norm = pc.and_(is_norm, pc.equal(kept["n_hist"], arrow(0)))
    at = np.flatnonzero(is_norm.to_numpy(zero_copy_only=False))
    step = kept["step"].to_numpy()[at]
    order = np.argsort(step, kind="stable")
    starts = np.flatnonzero(np.diff(step[order], prepend=-1))
    number = np.arange(len(at)) - np.repeat(starts, np.diff(np.append(starts, len(at))))
    is_counted = np.isin(step[order], records.steps[records.column("n_bad_grads") >= FEW_BAD])
    keep = np.ones(kept.num_rows, dtype=np.bool_)
    keep[at[order][(number >= FEW_BAD) & is_counted]] = False
    return kept.filter(mask_of(keep)) if not keep.all() else kept


class _Aside:
    """Tables of few rows in, few tables of many rows out: they may travel, and each column of each table costs."""

    def __init__(self) -> None:
        self._done: list[pa.Table] = []
        self._waiting: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        """The next one, with words as dictionaries."""
        self._waiting.append(table)
        if sum(table.num_rows for table in self._waiting) >= ROWS_OF_TABLE:
            self._flush()

    def tables(self) -> list[pa.Table]:
        """All, with words as they are."""
        if self._waiting:
            self._flush()
        return self._done

    def _flush(self) -> None:
        whole = pa.concat_tables(self._waiting).unify_dictionaries().combine_chunks()
        self._done.append(whole.cast(ranked(READINGS)))
        self._waiting.clear()


class Beside:
    """What is gathered of a rank while its own rules walk over it."""

    def __init__(self, rank: int, *, n_ranks: int, is_read: bool) -> None:
        # Of more ranks than can be told apart in a sum each has its own law alone: nothing has to be brought together.
        self._are_many = n_ranks > N_RANKS_AT_MOST
        self.sketch = RankSketch(rank=rank, own_law=OwnLaw() if self._are_many else None)
        self._rank, self._is_sketched, self._is_read = rank, n_ranks > 1, is_read
        self._kept: list[pa.RecordBatch] = []
        self._steps = np.zeros(0, np.int64)  # of the last collectives
        self._pending: tuple[int, pa.RecordBatch, Bools] | None = None  # the last step, if it had no collectives yet

    def add(self, columns: Columns) -> None:
        """The next batch."""
        if self._is_sketched:
            self.sketch.add(columns)
        if self._is_read and columns.n:
            few = self._few(columns)
            if few.any():
                self._kept.append(kept_rows(columns.batch, mask_of(few)))

    def _few(self, columns: Columns) -> Bools:
        kinds = columns.kinds
        few = kinds.equal("site", "sdc")
        if not self._is_sketched:
            return columns.rows(few)
        is_of_comm = kinds.equal("phase", "comm") | kinds.equal("port", REDUCED)
        of_comm = columns.rows(is_of_comm)
        is_of_law = kinds.equal("port", *(() if self._are_many else _LAW_PORTS))
        found = columns.rows(few | is_of_comm | is_of_law)
        steps, last = np.union1d(columns.steps[of_comm], self._steps), int(columns.steps[-1])
        if self._pending is not None and self._pending[0] in steps:  # that step began in the batch before
            self._kept.append(kept_rows(self._pending[1], mask_of(self._pending[2])))
        self._pending = None
        if len(steps):
            found |= columns.has("digest") & np.isin(columns.steps, steps)
        if last in steps:
            self._steps = np.array([last])
        else:
            self._steps = np.zeros(0, np.int64)
            self._pending = last, columns.batch, columns.has("digest") & (columns.steps == last) & ~found
        return found

    def table(self) -> pa.Table:
        """The rows, with their rank, and words as numbers into dictionaries."""
        return with_rank(pa.Table.from_batches(self._kept, encoded(READINGS)), self._rank)


def bad_steps(recorded: RecordedRun) -> Any:
    """Return steps of an imported run with something not finite: all their rows are wanted, to follow it."""
    found = [pc.unique(table["step"]) for _, table in recorded.scan(_is_nonfinite) if table.num_rows]
    return pc.unique(pa.concat_arrays(found)) if found else pa.array([], pa.int64())


def _is_nonfinite(table: Any) -> Any:
    return pc.greater(pc.add(pc.add(table["n_nan"], table["n_posinf"]), table["n_neginf"]), arrow(0))


def holds_values(recorded: RecordedRun) -> bool:
    """Return whether any reading tells of values: imported runs may hold names or checksums alone."""
    return any(table.num_rows for _, table in recorded.scan(_tells))


def _tells(table: Any) -> Any:
    found: Any = pc.is_valid(table["min"])
    for name in ("n_nan", "n_posinf", "n_neginf"):
        found = pc.or_(found, pc.greater(table[name], arrow(0)))
    return found
