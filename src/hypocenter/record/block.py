"""Rows of some steps on their way into one Arrow batch: as many rows cost hardly more than one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from hypocenter.record.norm_rows import NormRows, NormTemplate
from hypocenter.record.repair import Mended, laid_out
from hypocenter.record.schema import READINGS, STEPS, Row


class Block:
    """Rows in the order in which they were written.

    Args:
        mended: told of values that do not fit their columns.
    """

    def __init__(self, mended: Mended) -> None:
        self._mended = mended
        self._readings: list[Row] = []
        self._norms: list[tuple[int, NormRows]] = []  # after how many of the readings they come
        self._steps: list[Row] = []
        self.n_rows = 0

    def add(self, readings: Sequence[Row], norms: NormRows | None, steps: Sequence[Row]) -> None:
        """Append readings, then norms; and step records."""
        self._readings += readings
        if norms is not None:
            self._norms.append((len(self._readings), norms))
        self._steps += steps
        self.n_rows += len(readings) + len(norms or ()) + len(steps)

    def events(self) -> pa.RecordBatch | None:
        """All readings in columns; None if there are none."""
        if not self._readings and not self._norms:
            return None
        readings = laid_out(READINGS, self._readings, self._mended)
        if not self._norms:
            return readings
        norms = _by_template([norms for _, norms in self._norms])
        batches = [template.batch(updates, self._mended) for template, updates in norms]
        together = pa.Table.from_batches([readings, *batches], READINGS).combine_chunks()
        order = self._order([update for _, updates in norms for update in updates])
        return together.take(pa.array(order)).to_batches()[0]

    def _order(self, updates: Sequence[NormRows]) -> np.ndarray:
        """Where each row lies, behind the readings, when the updates lie there in this order."""
        first = dict(zip(map(id, updates), accumulate(map(len, updates), initial=len(self._readings)), strict=False))
        parts: list[np.ndarray] = []
        begin = 0
        for end, norms in self._norms:
            parts += [np.arange(begin, end), np.arange(len(norms)) + first[id(norms)]]
            begin = end
        return np.concatenate([*parts, np.arange(begin, len(self._readings))])

    def steps(self) -> pa.RecordBatch | None:
        """All step records in columns; None if there are none."""
        return laid_out(STEPS, self._steps, self._mended) if self._steps else None


def _by_template(norms: Sequence[NormRows]) -> list[tuple[NormTemplate, list[NormRows]]]:
    """Updates of the same parameters together."""
    found: dict[int, tuple[NormTemplate, list[NormRows]]] = {}
    for update in norms:
        found.setdefault(id(update.template), (update.template, []))[1].append(update)
    return list(found.values())
