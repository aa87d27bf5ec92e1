"""Step records of all ranks by rank and step: columns, of which a record is made when somebody asks for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hypocenter.detect.step_columns import StepColumns
from hypocenter.nouns import StepRecord

if TYPE_CHECKING:
    from hypocenter.record.reader import RecordedRun


class Records:
    """The step records by rank, and by step of each rank; empty when no rank completed a step.

    Args:
        by_rank: columns of each rank, in rising order of ranks.
    """

    def __init__(self, by_rank: Mapping[int, StepColumns]) -> None:
        self.by_rank = by_rank

    @classmethod
    def of(cls, recorded: RecordedRun, ranks: Sequence[int] | None = None) -> Records:
        """Return the records of a recording, or of some of its ranks."""
        asked = recorded.ranks if ranks is None else ranks
        return cls({rank: StepColumns(recorded.record_table(rank)) for rank in asked})

    def only(self, ranks: Collection[int]) -> Records:
        """Return those of some ranks."""
        return Records({rank: self.by_rank[rank] for rank in ranks if rank in self.by_rank})

    def __len__(self) -> int:
        return sum(map(len, self.by_rank.values()))

    def __iter__(self) -> Iterator[tuple[int, StepRecord]]:
        """Return an iterator over (rank, record) of all, rank by rank."""
        return ((rank, record) for rank in self.by_rank for record in self.of_rank(rank))

    def get(self, rank: int, step: int) -> StepRecord | None:
        """Return the record of a rank's step; None when it did not complete it."""
        columns = self.by_rank.get(rank)
        return columns.at(step) if columns is not None else None

    def of_rank(self, rank: int) -> list[StepRecord]:
        """Return the records of one rank, in order of steps."""
        columns = self.by_rank.get(rank)
        return list(columns.between(0, len(columns))) if columns is not None else []

    def skipping(self) -> Iterator[list[StepRecord]]:
        """Return the records of each rank that skipped a step."""
        return (self.of_rank(rank) for rank, each in self.by_rank.items() if (each.column("skipped") > 0).any())

    def steps(self) -> np.ndarray:
        """Return the steps that any rank completed, in rising order."""
        known = {each.steps.tobytes(): each.steps for each in self.by_rank.values()}
        return np.unique(np.concatenate([np.zeros(0, np.int64), *known.values()]))

    def first_steps(self) -> dict[int, int]:
        """Return by rank the first step that it completed."""
        return {rank: int(each.steps[0]) for rank, each in self.by_rank.items() if len(each)}

    def last_steps(self) -> dict[int, int]:
        """Return by rank the last step that it completed."""
        return {rank: int(each.steps[-1]) for rank, each in self.by_rank.items() if len(each)}

    def latest(self, n: int) -> list[StepRecord]:
        """Return the last `n` records, of the last ranks."""
        found: list[StepRecord] = []
        for each in reversed(list(self.by_rank.values())):
            found = [*each.between(max(0, len(each) - (n - len(found))), len(each)), *found]
            if len(found) >= n:
                break
        return found

    def at_step(self, step: int) -> Mapping[int, StepRecord]:
        """Return the records of a step by rank."""
        return _AtStep(self, step)

    def have(self, name: str) -> bool:
        """Return whether any record has a value of that name."""
        return any(columns.has(name).any() for columns in self.by_rank.values())


class _AtStep(Mapping[int, StepRecord]):
    """The records of one step by rank, made when they are asked for."""

    def __init__(self, records: Records, step: int) -> None:
        self._records, self._step = records, step

    def __getitem__(self, rank: int) -> StepRecord:
        record = self._records.get(rank, self._step)
        if record is None:
            raise KeyError(rank)
        return record

    def __iter__(self) -> Iterator[int]:
        return (rank for rank, each in self._records.by_rank.items() if each.has_step(self._step))

    def __len__(self) -> int:
        return sum(1 for _ in self)
