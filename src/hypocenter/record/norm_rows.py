"""Norms of one update's gradients as rows: many, alike, and different from those of the last update in four columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import pyarrow as pa

from hypocenter.nouns import Reading, Summary
from hypocenter.record.repair import Mended, laid_out
from hypocenter.record.schema import READINGS, reading_row


class NormTemplate:
    """What is the same in all updates of the same parameters.

    Args:
        rows: one for each parameter, in order: its site, format, shape and number of elements.
    """

    def __init__(self, rows: Sequence[Reading]) -> None:
        self.rows = tuple(rows)
        self._columns: list[pa.Array] = []

    def batch(self, updates: Sequence[NormRows], mended: Mended) -> pa.RecordBatch:
        """The rows of some updates of these parameters in columns, one update after the other.

        Args:
            updates: at least one.
            mended: told of values that do not fit their columns.
        """
        self._columns = self._columns or laid_out(READINGS, list(map(reading_row, self.rows)), mended).columns
        n = len(self.rows)
        norms = np.array([update.norms for update in updates], np.float64)  # [n updates, n parameters]
        is_bad = np.zeros(norms.shape, bool)
        for row, update in zip(is_bad, updates, strict=True):
            row[list(update.bad)] = True
        with np.errstate(over="ignore"):  # a norm of float64 parameters may be that large
            sumsq = np.where(is_bad, 0.0, np.square(norms))
        changing: dict[str, np.ndarray] = {
            "step": np.repeat([update.step for update in updates], n),
            "order": np.add.outer([update.first_order for update in updates], np.arange(n)).ravel(),
            "sumsq": sumsq.ravel(),
            "n_nan": is_bad.astype(np.int64).ravel(),
        }
        columns = [
            pa.array(changing[name], field.type)
            if (name := field.name) in changing
            else pa.concat_arrays([column] * len(updates))
            for field, column in zip(READINGS, self._columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=READINGS)


class NormRows(Sequence[Reading]):
    """Rows of one update.

    Args:
        template: of its parameters.
        step: of the update.
        first_order: place of the first row in the step; the others follow.
        norms: L2 norm of each gradient.
        bad: which gradients are not finite, by their place in the template.
    """

    def __init__(
        self, template: NormTemplate, *, step: int, first_order: int, norms: Sequence[float], bad: frozenset[int]
    ) -> None:
        self.template, self.step, self.first_order = template, step, first_order
        self.norms, self.bad = norms, bad

    def __len__(self) -> int:
        return len(self.norms)

    @overload
    def __getitem__(self, at: int) -> Reading: ...
    @overload
    def __getitem__(self, at: slice) -> list[Reading]: ...
    def __getitem__(self, at: int | slice) -> Reading | list[Reading]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        row, is_bad = self.template.rows[at], at in self.bad
        sumsq = 0.0 if is_bad else self.norms[at] * self.norms[at]
        return Reading(
            step=self.step, microbatch=row.microbatch, phase=row.phase, site=row.site, port=row.port,
            order=self.first_order + at, dtype=row.dtype, shape=row.shape,
            summary=Summary(n=row.summary.n, sumsq=sumsq, n_nan=int(is_bad)),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Reading]:
        return (self[i] for i in range(len(self)))
