"""Rows of some steps on their way into one Arrow batch: as many rows cost hardly more than one."""

from __future__ import annotations

from collections.abc import Sequence

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
        """Append readings, then norms, and step records."""
        self._readings += readings
        if norms is not None:
            self._norms.append((len(self._readings), norms))
        self._steps += steps
        self.n_rows += len(readings) + (0 if norms is None else len(norms.norms)) + len(steps)

    def events(self) -> pa.RecordBatch | None:
        """Return all readings in columns; None if there are none."""
        if not self._readings and not self._norms:
            return None
        readings = laid_out(READINGS, self._readings, self._mended)
        if not self._norms:
            return readings
        pieces, places = [readings], [np.arange(1, 2 * readings.num_rows, 2)]  # a row's place: one of its own
        turns = [np.zeros(readings.num_rows, np.int64)]  # and among those that share it
        by_template = _by_template(self._norms)
        if not self._readings and len(by_template) == 1:  # healthy steps, with one optimizer
            return by_template[0][0].batch([norms for *_, norms in by_template[0][1]], self._mended)
        for template, updates in by_template:
            n = len(template.rows)
            pieces.append(template.batch([norms for *_, norms in updates], self._mended))
            places.append(np.repeat([2 * end for _, end, _ in updates], n))  # before the reading that follows
            turns.append(np.repeat([turn for turn, *_ in updates], n))
        in_order = np.lexsort((np.concatenate(turns), np.concatenate(places)))
        return pa.Table.from_batches(pieces, READINGS).combine_chunks().take(pa.array(in_order)).to_batches()[0]

    def steps(self) -> pa.RecordBatch | None:
        """Return all step records in columns; None if there are none."""
        return laid_out(STEPS, self._steps, self._mended) if self._steps else None


def _by_template(norms: Sequence[tuple[int, NormRows]]) -> list[tuple[NormTemplate, list[tuple[int, int, NormRows]]]]:
    """Group updates of the same parameters: (their turn, after how many readings they come, their rows)."""
    found: dict[int, tuple[NormTemplate, list[tuple[int, int, NormRows]]]] = {}
    for turn, (end, update) in enumerate(norms):
        found.setdefault(id(update.template), (update.template, []))[1].append((turn, end, update))
    return list(found.values())
