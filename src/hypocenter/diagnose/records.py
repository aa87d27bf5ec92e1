"""Step records of all ranks by (rank, step): columns, of which a record is made when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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

    def at_step(self, step: int) -> dict[int, StepRecord]:
        """By rank."""
        return {r: record for r, columns in self.by_rank.items() if (record := columns.at(step)) is not None}

    def have(self, name: str) -> bool:
        """Whether any record has a value of that name."""
        return any(columns.has(name).any() for columns in self.by_rank.values())
