"""Step records of all ranks by (rank, step): columns, of which a record is made when somebody asks for it."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping

import numpy as np

from hypocenter.detect.step_columns import StepColumns
from hypocenter.nouns import StepRecord


class Records(Mapping[tuple[int, int], StepRecord]):
    """By rank, and by step of each rank.

    Args:
        by_rank: columns of each rank, in rising order of ranks.
    """

    def __init__(self, by_rank: Mapping[int, StepColumns]) -> None:
        self.by_rank = by_rank

    def __getitem__(self, key: tuple[int, int]) -> StepRecord:
        columns = self.by_rank.get(key[0])
        record = columns.at(key[1]) if columns is not None else None
        if record is None:
            raise KeyError(key)
        return record

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((rank, step) for rank, columns in self.by_rank.items() for step in columns.steps.tolist())

    def __len__(self) -> int:
        return sum(map(len, self.by_rank.values()))

    def of_rank(self, rank: int) -> list[StepRecord]:
        """The records of one rank, in order of steps."""
        columns = self.by_rank.get(rank)
        return list(columns.between(0, len(columns))) if columns is not None else []

    def steps(self) -> np.ndarray:
        """Steps that any rank completed, in rising order."""
        known = {each.steps.tobytes(): each.steps for each in self.by_rank.values()}
        return np.unique(np.concatenate([np.zeros(0, np.int64), *known.values()]))

    def items(self) -> ItemsView[tuple[int, int], StepRecord]:
        """All, made rank by rank."""
        return _Items(self)

    def at_step(self, step: int) -> Mapping[int, StepRecord]:
        """By rank."""
        return _AtStep(self, step)

    def have(self, name: str) -> bool:
        """Whether any record has a value of that name."""
        return any(columns.has(name).any() for columns in self.by_rank.values())


def steps_in(records: Mapping[tuple[int, int], StepRecord]) -> list[int]:
    """Different steps, in rising order."""
    return records.steps().tolist() if isinstance(records, Records) else sorted({step for _, step in records})


def of_rank(records: Mapping[tuple[int, int], StepRecord], rank: int) -> list[StepRecord]:
    """The records of one rank, in order of steps."""
    if isinstance(records, Records):
        return records.of_rank(rank)
    return [record for (of, _), record in sorted(records.items(), key=lambda item: item[0]) if of == rank]


def first_steps(records: Mapping[tuple[int, int], StepRecord]) -> dict[int, int]:
    """By rank."""
    if isinstance(records, Records):
        return {rank: int(each.steps[0]) for rank, each in records.by_rank.items() if len(each)}
    found: dict[int, int] = {}
    for rank, step in records:
        found[rank] = min(step, found.get(rank, step))
    return found


def last_steps(records: Mapping[tuple[int, int], StepRecord]) -> dict[int, int]:
    """By rank."""
    if isinstance(records, Records):
        return {rank: int(each.steps[-1]) for rank, each in records.by_rank.items() if len(each)}
    found: dict[int, int] = {}
    for rank, step in records:
        found[rank] = max(step, found.get(rank, step))
    return found


def latest(records: Mapping[tuple[int, int], StepRecord], n: int) -> list[StepRecord]:
    """The last ones, of the last ranks."""
    if not isinstance(records, Records):
        return list(records.values())[-n:]
    found: list[StepRecord] = []
    for each in reversed(list(records.by_rank.values())):
        found = [*each.between(max(0, len(each) - (n - len(found))), len(each)), *found]
        if len(found) >= n:
            break
    return found


class _Items(ItemsView[tuple[int, int], StepRecord]):
    def __iter__(self) -> Iterator[tuple[tuple[int, int], StepRecord]]:
        records = self._mapping
        assert isinstance(records, Records)
        return (((rank, each.step), each) for rank in records.by_rank for each in records.of_rank(rank))


class _AtStep(Mapping[int, StepRecord]):
    """The records of one step by rank, made when they are asked for."""

    def __init__(self, records: Records, step: int) -> None:
        self._records, self._step = records, step

    def __getitem__(self, rank: int) -> StepRecord:
        return self._records[rank, self._step]

    def __iter__(self) -> Iterator[int]:
        return (rank for rank, each in self._records.by_rank.items() if each.has_step(self._step))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class OfRanks(Mapping[int, list[StepRecord]]):
    """The records of each rank in order of steps, made when they are asked for."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __getitem__(self, rank: int) -> list[StepRecord]:
        if rank not in self._records.by_rank:
            raise KeyError(rank)
        return self._records.of_rank(rank)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._records.by_rank))

    def __len__(self) -> int:
        return len(self._records.by_rank)

    def skipping(self) -> Iterator[list[StepRecord]]:
        """Of ranks that skipped a step."""
        return (self[rank] for rank, each in self._records.by_rank.items() if (each.column("skipped") > 0).any())
