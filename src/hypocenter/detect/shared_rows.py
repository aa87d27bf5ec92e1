"""Whether data-parallel ranks are given the same samples, in whatever order: rows of the first pass."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_rows import BATCH_LOSS, BATCH_PREFIX, ROW_PLACES

_STEPS = 1024  # that are looked at
_RANKS = 64  # of a group
_OVER = 0.9  # of the rows of a step
_LEAST, _SHARE = 16, 0.5  # of the rows of a group: fewer are the padding of a sampler, or chance
_BY_CHANCE = 0.5  # of the rows that came on several ranks: as many come again on a rank by chance, per other rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Rows that more than one rank of a group was given."""

    ranks: tuple[int, ...]
    n_shared: int
    n_rows: int  # different ones that the group was given


@dataclass(slots=True)
class _Known:
    """Rows that a group was given, and how often one came again on a rank that had had it."""

    seen_on: dict[int, int] = field(default_factory=dict[int, int])  # by row, a bit for each rank
    n_again: int = 0

    def add(self, rows: Iterable[int], bit: int) -> None:
        """Take in what one rank was given in a step."""
        for row in rows:
            on = self.seen_on.get(row, 0)
            self.n_again += on >> bit & 1
            self.seen_on[row] = on | 1 << bit


@dataclass(slots=True)
class SharedRows:
    """Follow the rows of each group in its first pass, which is over when nearly all rows of a step came before.

    Ranks that share the data out meet no row of another rank before; those that do not meet more and more of them.
    Where rows are dealt out anew in each pass, drawn with replacement, or alike, one comes again on its own rank as
    often as on any other: of a pass by oneself none does.
    """

    _steps: int = 0
    _known: dict[tuple[int, ...], _Known] = field(default_factory=dict[tuple[int, ...], _Known])
    _done: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def add(self, panel: Panel, drawn: Collection[tuple[int, ...]]) -> None:
        """Take in the batches of a step, but of groups whose batches were `drawn`, and are no data."""
        groups = [ranks for ranks in panel.groups("dp") if ranks not in self._done and ranks not in drawn]
        if self._steps >= _STEPS or not groups or "row_digests" not in panel.table.column_names:
            return
        self._steps += 1
        of_step = self._of_step(panel)
        for ranks in groups:
            known = self._known.setdefault(ranks, _Known())
            given = [set(of_step.get(rank, ())) for rank in ranks[:_RANKS]]
            n_rows = sum(map(len, given))
            if n_rows and sum(row in known.seen_on for rows in given for row in rows) >= _OVER * n_rows:
                self._done.add(ranks)
                continue
            for bit, rows in enumerate(given):
                known.add(rows, bit)

    def _of_step(self, panel: Panel) -> dict[int, list[int]]:
        """Return, by rank, the rows of the tensor that has the most values a row."""
        import pyarrow.compute as pc

        table = panel.where(phase="data")
        table = table.filter(pc.starts_with(table["site"], BATCH_PREFIX))
        table = table.filter(pc.greater(pc.fill_null(pc.list_value_length(table["row_digests"]), 0), 0))
        best: dict[int, tuple[int, str, list[Any]]] = {}
        columns = [table[name].to_pylist() for name in ("rank", "site", "shape", "row_digests")]
        for rank, site, shape, packed in zip(*columns, strict=True):
            width = math.prod(shape[1:])
            widest, of, rows = best.get(rank, (1, "", []))
            if site == of:  # of another micro-batch
                rows.append(packed)
            elif width > widest and not site.startswith(BATCH_LOSS):
                best[rank] = width, site, [packed]
        return {
            rank: [each // ROW_PLACES for packed in several for each in packed if each >= ROW_PLACES]
            for rank, (*_, several) in best.items()
        }

    def found(self) -> Shared | None:
        """Return the first group of which most rows were given to several ranks; None if there is none."""
        for ranks, known in self._known.items():
            n_shared = sum(on & on - 1 != 0 for on in known.seen_on.values())
            n_by_chance = known.n_again * (min(len(ranks), _RANKS) - 1)
            if n_shared >= max(_LEAST, _SHARE * len(known.seen_on)) and n_by_chance < _BY_CHANCE * n_shared:
                return Shared(ranks=ranks, n_shared=n_shared, n_rows=len(known.seen_on))
        return None
