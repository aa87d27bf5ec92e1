"""Whether data-parallel ranks are given the same samples, in whatever order: rows of the first pass."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_rows import BATCH_LOSS, BATCH_PREFIX, ROW_PLACES

_STEPS = 1024  # that are looked at
_RANKS = 64  # of a group
_OVER = 0.9  # of the rows of a step
_LEAST, _SHARE = 16, 0.5  # of the rows of a group: fewer are the padding of a sampler, or chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Rows that more than one rank of a group was given."""

    ranks: tuple[int, ...]
    n_shared: int
    n_rows: int  # different ones that the group was given


@dataclass(slots=True)
class SharedRows:
    """Follow the rows of each group in its first pass, which is over when nearly all rows of a step came before.

    Ranks that share the data out meet no row of another rank before; those that do not meet more and more of them.
    """

    _steps: int = 0
    _n_each: dict[tuple[int, ...], Counter[int]] = field(default_factory=dict[tuple[int, ...], Counter[int]])
    _done: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def add(self, panel: Panel) -> None:
        """Take in the batches of a step."""
        groups = [ranks for ranks in panel.groups("dp") if ranks not in self._done]
        if self._steps >= _STEPS or not groups or "row_digests" not in panel.table.column_names:
            return
        self._steps += 1
        of_step = self._of_step(panel)
        for ranks in groups:
            known = self._n_each.setdefault(ranks, Counter())
            rows = [row for rank in ranks[:_RANKS] for row in set(of_step.get(rank, ()))]
            if rows and sum(row in known for row in rows) >= _OVER * len(rows):
                self._done.add(ranks)
            else:
                known.update(rows)

    def _of_step(self, panel: Panel) -> dict[int, list[int]]:
        """Return, by rank, the rows of the tensor that has the most values a row."""
        import pyarrow.compute as pc

        table = panel.table.filter(pc.starts_with(panel.table["site"], BATCH_PREFIX))
        table = table.filter(pc.greater(pc.fill_null(pc.list_value_length(table["row_digests"]), 0), 0))
        best: dict[int, tuple[int, Any]] = {}
        columns = [table[name].to_pylist() for name in ("rank", "site", "shape", "row_digests")]
        for rank, site, shape, packed in zip(*columns, strict=True):
            width = math.prod(shape[1:])
            if width > max(1, best.get(rank, (0, None))[0]) and not site.startswith(BATCH_LOSS):
                best[rank] = width, packed
        return {
            rank: [each // ROW_PLACES for each in packed if each >= ROW_PLACES] for rank, (_, packed) in best.items()
        }

    def found(self) -> Shared | None:
        """Return the first group of which most rows were given to several ranks; None if there is none."""
        for ranks, n_each in self._n_each.items():
            n_shared = sum(n > 1 for n in n_each.values())
            if n_shared >= max(_LEAST, _SHARE * len(n_each)):
                return Shared(ranks=ranks, n_shared=n_shared, n_rows=len(n_each))
        return None
