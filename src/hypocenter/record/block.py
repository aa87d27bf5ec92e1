"""Rows of some steps on their way into one Arrow batch: as many rows cost hardly more than one."""

from __future__ import annotations

from collections.abc import Sequence

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
        pieces: dict[int, pa.RecordBatch] = {}
        by_template = _by_template([norms for _, norms in self._norms])
        if not self._readings and len(by_template) == 1:  # healthy steps, with one optimizer
            return by_template[0][0].batch(by_template[0][1], self._mended)
        for template, updates in by_template:
            batch, n = template.batch(updates, self._mended), len(updates[0])
            pieces.update({id(update): batch.slice(i * n, n) for i, update in enumerate(updates)})
        ends = [end for end, _ in self._norms]
        between = [readings.slice(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
        of_norms = [pieces[id(norms)] for _, norms in self._norms]
        in_order = [each for pair in zip(between, of_norms, strict=True) for each in pair]
        together = pa.Table.from_batches([*in_order, readings.slice(ends[-1])], READINGS)
        return together.combine_chunks().to_batches()[0]

    def steps(self) -> pa.RecordBatch | None:
        """All step records in columns; None if there are none."""
        return laid_out(STEPS, self._steps, self._mended) if self._steps else None


def _by_template(norms: Sequence[NormRows]) -> list[tuple[NormTemplate, list[NormRows]]]:
    """Updates of the same parameters together."""
    found: dict[int, tuple[NormTemplate, list[NormRows]]] = {}
    for update in norms:
        found.setdefault(id(update.template), (update.template, []))[1].append(update)
    return list(found.values())
