"""Whether data-parallel ranks are given the same samples, in whatever order: rows of a pass over the data."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_rows import BATCH_LOSS, BATCH_PREFIX, ROW_PLACES

_STEPS = 1024  # that are looked at
_RANKS = 64  # of a group
_OVER, _OWN = 0.9, 0.1  # of the rows of a step that came before; of all that came twice on one rank: a pass is over
# Of the rows of a group: fewer are the padding of a sampler, or chance. Of two ranks that each draw half of the data by
# themselves a third comes on both, of more ranks more.
_LEAST, _SHARE = 16, 0.2
_BY_CHANCE = 0.5  # times as many rows come again on their own rank where they are drawn or dealt out anew
_UNLIKELY = math.log(1e4)  # that chance does it


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Rows that more than one rank of a group was given in a pass over the data."""

    ranks: tuple[int, ...]
    step: int  # the first of the pass
    n_shared: int
    n_rows: int  # different ones that the group was given


@dataclass(slots=True)
class _Pass:
    """Rows that a group was given, and whether those that came twice did so on one rank, or on two."""

    step: int
    n_ranks: int
    n_steps: int = 0
    seen_on: dict[int, int] = field(default_factory=dict[int, int])  # by row, a bit for each rank
    _again: set[int] = field(default_factory=set[int])  # rows that came twice
    n_shared: int = 0  # of these, the second time on another rank

    def add(self, given: Iterable[Iterable[int]]) -> None:
        """Take in what each rank was given in a step."""
        self.n_steps += 1
        for bit, rows in enumerate(given):
            for row in rows:
                on = self.seen_on.get(row, 0)
                if on and row not in self._again:
                    self._again.add(row)
                    self.n_shared += not on >> bit & 1
                self.seen_on[row] = on | 1 << bit

    @property
    def n_own(self) -> int:
        """How many rows came twice on one rank: in one pass none does, but for data that is alike."""
        return len(self._again) - self.n_shared

    @property
    def is_shared(self) -> bool:
        """Whether many came on several ranks, by far more of those that came twice than by chance.

        By chance one of n ranks is that of the first time. The bound is Chernoff's, of the binomial distribution.
        """
        n_again, n_shared = len(self._again), self.n_shared
        if n_shared < max(_LEAST, _SHARE * len(self.seen_on)):
            return False
        own, by_chance = 1.0 - n_shared / n_again, 1.0 / self.n_ranks
        if own >= _BY_CHANCE * by_chance:
            return False
        apart = (1.0 - own) * math.log((1.0 - own) / (1.0 - by_chance))
        apart += own * math.log(own / by_chance) if own else 0.0
        return n_again * apart > _UNLIKELY


@dataclass(slots=True)
class SharedRows:
    """Follow the rows of each group pass by pass. The first is over when nearly all rows of a step came before,
    or many on the same rank.

    Ranks that share the data out meet no row of another rank in a pass; those that do not meet more and more of them.
    Where rows are dealt out anew in the midst of what is taken for a pass, drawn with replacement, or alike, one comes
    again on its own rank as often as on any other: of a pass by oneself none does.
    """

    _steps: int = 0
    _passes: dict[tuple[int, ...], _Pass] = field(default_factory=dict[tuple[int, ...], _Pass])
    _lengths: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])  # steps of a pass
    _found: dict[tuple[int, ...], _Pass] = field(default_factory=dict[tuple[int, ...], _Pass])

    def add(self, panel: Panel, drawn: Collection[tuple[int, ...]]) -> None:
        """Take in the batches of a step, but of groups whose batches were `drawn`, and are no data."""
        groups = [ranks for ranks in panel.groups("dp") if ranks not in drawn and not self._is_known(ranks)]
        if self._steps >= _STEPS or not groups or "row_digests" not in panel.table.column_names:
            return
        self._steps += 1
        of_step = self._of_step(panel)
        for ranks in groups:
            given = [set(of_step.get(rank, ())) for rank in ranks[:_RANKS]]
            now = self._passes.setdefault(ranks, _Pass(panel.step, len(given)))
            if self._is_over(ranks, now, given):
                self._lengths.setdefault(ranks, now.n_steps)
                now = self._passes[ranks] = _Pass(panel.step, len(given))
            now.add(given)
            if now.is_shared and ranks not in self._found:
                self._found[ranks] = now

    def _is_known(self, ranks: tuple[int, ...]) -> bool:
        """Return whether a pass is over in which samples were shared: no other need be looked at."""
        return ranks in self._found and self._found[ranks] is not self._passes[ranks]

    def _is_over(self, ranks: tuple[int, ...], now: _Pass, given: Sequence[Collection[int]]) -> bool:
        if (length := self._lengths.get(ranks)) is not None:
            return now.n_steps >= length
        if now.n_own >= max(_LEAST, _OWN * len(now.seen_on)):
            return True
        n_rows = sum(map(len, given))
        return n_rows > 0 and sum(row in now.seen_on for rows in given for row in rows) >= _OVER * n_rows

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
        """Return the first pass in which many rows were given to several ranks; None if there is none."""
        if not self._found:
            return None
        ranks, of = min(self._found.items(), key=lambda each: each[1].step)
        return Shared(ranks=ranks, step=of.step, n_shared=of.n_shared, n_rows=len(of.seen_on))
