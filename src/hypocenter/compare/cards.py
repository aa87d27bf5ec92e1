"""SiteCards of a run: what a matcher may know of each spot, from the first step that recorded it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.compare.comparison import SiteCard, Spot, stages_of
from hypocenter.compare.ranks import of_job, shape_of
from hypocenter.compare.rows import KEY, Compared, Spots, ahead, by_step, is_compared
from hypocenter.diagnose import logical
from hypocenter.record.reader import RecordedRun

_TOLD = ("order", "module", "dtype", "shape", "names", "n", "sumsq", "absmax", "hist_first", "hist", "sketch", "digest")
_READ = ("step", *KEY, *_TOLD, "op", "recompute", "replay", "microbatch", "placement", "literal_inf")
_SEEN = ("step", *KEY, "op", "recompute", "replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCards:
    """The cards of a run, and at which step each spot was first seen."""

    cards: tuple[SiteCard, ...]
    steps: dict[Spot, int]

    @property
    def by_spot(self) -> dict[Spot, SiteCard]:
        """The cards by their spots."""
        return {card.spot: card for card in self.cards}


def cards_of(run: RecordedRun) -> RunCards:
    """Return the cards of all spots that are compared, in execution order (`SiteCard.order` counts them)."""
    firsts = _first_steps(run)
    wanted = pa.array(sorted(set(firsts.values())), pa.int64())

    is_first = partial(_is_at, wanted)
    found: dict[Spot, dict[str, Any]] = {}
    columns = tuple(dict.fromkeys((*_READ, *(logical.READS if len(run.ranks) > 1 else ()))))
    tables = [_of_all_ranks(run, columns, is_first)] if len(run.ranks) > 1 else _of_one_rank(run, columns, is_first)
    for table in tables:
        _collect(table, firsts, found)
    stage = dict(zip(found, stages_of(found), strict=True))
    ordered = sorted(found, key=lambda spot: (stage[spot], found[spot]["order"], firsts[spot], spot.port))
    cards = [_card(spot, found[spot], order) for order, spot in enumerate(ordered)]
    return RunCards(cards=tuple(cards), steps=firsts)


def _is_at(steps: pa.Array, batch: pa.RecordBatch) -> pa.Array:
    return pc.and_(pc.is_in(batch["step"], steps), is_compared(batch))


def cards(run: RecordedRun) -> tuple[SiteCard, ...]:
    """Return the cards of all spots that are compared, without the steps at which they were first seen."""
    return cards_of(run).cards


def _of_all_ranks(run: RecordedRun, columns: Sequence[str], where: Any) -> pa.Table:
    """Merge the rows of all ranks; what merging drops (module, shape) is taken from the lowest rank that has it."""
    tables = [table for _, table in run.scan(where, columns=(*columns, "rank"))]
    table = pa.concat_tables(tables)
    joined = of_job(table, run.places, histograms=True)
    told: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in table.select([*KEY, "rank", "module", "shape", "names"]).to_pylist():
        told.setdefault(tuple(row[name] for name in (*KEY, "rank")), row)
    rows = joined.select([*KEY, "rank", "n", "placement"]).to_pylist()
    of = [told[tuple(row[name] for name in (*KEY, "rank"))] for row in rows]
    joined = joined.append_column("module", pa.array([row["module"] for row in of], pa.string()))
    joined = joined.append_column("names", pa.array([row["names"] for row in of], pa.list_(pa.string())))
    places = run.places
    shapes = [
        shape_of(row["shape"], one["placement"], one["n"], places.get(one["rank"]))
        for row, one in zip(of, rows, strict=True)
    ]
    return joined.append_column("shape", pa.array(shapes, pa.list_(pa.int64())))


def _of_one_rank(run: RecordedRun, columns: Sequence[str], where: Any) -> Iterator[pa.Table]:
    stream = run.stream(run.ranks[0], columns)
    if stream is None:
        yield from (table for _, table in run.scan(where, columns=columns))
        return
    kept = [rows for batch in stream if (rows := batch.filter(where(batch))).num_rows]
    if kept:
        yield pa.Table.from_batches(kept)


def _first_steps(run: RecordedRun) -> dict[Spot, int]:
    """Return for each spot the first step at which it was recorded."""
    firsts: dict[Spot, int] = {}
    for part in run.over_parts(_first_steps_of):
        for spot, step in part.items():
            firsts[spot] = min(step, firsts.get(spot, step))
    return firsts


def _first_steps_of(run: RecordedRun, ranks: Sequence[int]) -> dict[Spot, int]:
    spots, firsts = Spots(), dict[int, int]()
    for batch in _seen(run, ranks):
        number = spots.numbers(batch)
        step = batch["step"].to_numpy()
        order = np.lexsort((step, number))
        at = order[np.unique(number[order], return_index=True)[1]]
        for one, first in zip(number[at].tolist(), step[at].tolist(), strict=True):
            firsts[one] = min(int(first), firsts.get(one, int(first)))
    return {spots.known[number]: step for number, step in firsts.items()}


def _seen(run: RecordedRun, ranks: Sequence[int]) -> Iterator[pa.RecordBatch]:
    for rank in ranks:
        stream, compared = run.stream(rank, _SEEN), Compared()
        last = -1
        for step, table in by_step(ahead(stream if stream is not None else _scanned(run, rank))):
            rows = compared.of(table)
            if rows.num_rows and not (compared.is_as_before and step > last):
                yield from rows.combine_chunks().to_batches()
            last = max(last, step)


def _scanned(run: RecordedRun, rank: int) -> Iterator[pa.RecordBatch]:
    for _, table in run.scan(columns=_SEEN, ranks=[rank]):
        yield from table.to_batches()


def _collect(table: pa.Table, firsts: dict[Spot, int], found: dict[Spot, dict[str, Any]]) -> None:
    """Add to `found`, for each spot in the table, its row of its first step and lowest micro-batch."""
    for batch in table.to_batches():
        spots = Spots()
        number = spots.numbers(batch)
        due = np.array([firsts.get(spot, -1) for spot in spots.known], np.int64)
        mine = np.flatnonzero(batch["step"].to_numpy() == due[number])
        order = mine[np.lexsort((batch["microbatch"].to_numpy()[mine], number[mine]))]
        at = order[np.unique(number[order], return_index=True)[1]]
        rows = batch.select([*_TOLD, "op"]).take(pa.array(at)).to_pylist()
        for one, row in zip(number[at].tolist(), rows, strict=True):
            found.setdefault(spots.known[one], row)


def _card(spot: Spot, row: dict[str, Any], order: int) -> SiteCard:
    sketch = row["sketch"]
    card = SiteCard(
        spot=spot, order=order, module=row["module"], dtype=row["dtype"], shape=tuple(row["shape"]),
        names=tuple(row["names"]), n=row["n"], sumsq=row["sumsq"], absmax=row["absmax"],
        hist_first=row["hist_first"], hist=tuple(row["hist"]), digest=row["digest"],
    )  # fmt: skip
    return card if sketch is None else replace(card, sketch=tuple(sketch))
