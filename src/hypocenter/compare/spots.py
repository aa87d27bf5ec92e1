"""Numbers for the spots of a run, so that millions of rows are compared as columns of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hypocenter.compare.comparison import Spot

Ints = npt.NDArray[np.int64]
KEY = ("phase", "site", "port", "call")


@dataclass(slots=True)
class Spots:
    """Spots of one run in the order in which they were first seen; a spot's number is its place in `known`."""

    known: list[Spot] = field(default_factory=list[Spot])
    _number: dict[Spot, int] = field(default_factory=dict[Spot, int])

    def number_of(self, spot: Spot) -> int:
        """The number of a spot; a new one gets the next."""
        found = self._number.get(spot)
        if found is None:
            found = self._number[spot] = len(self.known)
            self.known.append(spot)
        return found

    def find(self, spot: Spot) -> int:
        """The number of a spot, -1 when it was never seen."""
        return self._number.get(spot, -1)

    def numbers(self, batch: pa.RecordBatch) -> Ints:
        """For each row of a batch with columns KEY the number of its spot."""
        codes, firsts = distinct([batch[name] for name in KEY])
        rows = batch.select(list(KEY)).take(pa.array(firsts)).to_pylist()
        return np.fromiter((self.number_of(Spot(**row)) for row in rows), np.int64, len(rows))[codes]


def distinct(columns: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """For each row the number of its combination of values, and the first row of each combination."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        indices = column.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False).astype(np.int64)
        joined = codes * (int(indices.max(initial=0)) + 1) + indices
        codes = np.unique(joined, return_inverse=True)[1].astype(np.int64).reshape(-1)
    _, firsts = np.unique(codes, return_index=True)
    return codes, firsts.astype(np.int64)
