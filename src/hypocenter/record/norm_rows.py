"""The numbers of one update as rows: norms of gradients, loss, learning rate. Alike each time but for a few columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import pyarrow as pa

from hypocenter.nouns import Reading, Summary
from hypocenter.record.repair import Mended, laid_out
from hypocenter.record.schema import READINGS, reading_row

SCALAR_PORT = "value"  # of a row that is a number of the run itself, not the norm of a tensor


def scalar_summary(value: float) -> Summary:
    """Return a number of the run (loss, grad_norm, lr, loss_scale) as a summary of one element."""
    if math.isfinite(value):
        return Summary(
            n=1, n_hist=1, n_zero=int(value == 0), min=value, max=value, absmax=abs(value), sum=value,
            sumsq=value * value, absmin=abs(value) or None,
        )  # fmt: skip
    return Summary(n=1, n_nan=int(math.isnan(value)), n_posinf=int(value > 0), n_neginf=int(value < 0))


class NormTemplate:
    """What is the same in all updates of the same parameters.

    Args:
        rows: one for each number, in order. Of a parameter: its site, format, shape and number of elements. Rows with
            the port `value` are numbers of the run, and come last.

    Attributes:
        entry: what a journal keeps of it, once it has met it; it comes again in each block of steps.
    """

    def __init__(self, rows: Sequence[Reading]) -> None:
        self.rows, self.entry = tuple(rows), b""
        self._n_norms = next((i for i, row in enumerate(rows) if row.port == SCALAR_PORT), len(rows))
        self._columns: list[pa.Array] = []
        self._repeated: tuple[int, list[pa.Array]] = (0, [])  # the columns that never change, for so many updates

    def batch(self, updates: Sequence[NormRows], mended: Mended) -> pa.RecordBatch:
        """Return the rows of some updates of these parameters in columns, one update after the other.

        Args:
            updates: at least one.
            mended: told of values that do not fit their columns.
        """
        self._columns = self._columns or laid_out(READINGS, list(map(reading_row, self.rows)), mended).columns
        n = len(self.rows)
        changing = {
            "step": np.repeat([update.step for update in updates], n),
            "order": np.add.outer([update.first_order for update in updates], np.arange(n)).ravel(),
            **self._numbers(updates),
        }
        if self._repeated[0] != len(updates):
            self._repeated = len(updates), [pa.concat_arrays([column] * len(updates)) for column in self._columns]
        columns = [
            repeated
            if (column := changing.get(field.name)) is None
            else column
            if isinstance(column, pa.Array)
            else pa.array(column, field.type)
            for field, repeated in zip(READINGS, self._repeated[1], strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=READINGS)

    def _numbers(self, updates: Sequence[NormRows]) -> dict[str, np.ndarray | pa.Array]:
        """Return the columns that follow from the numbers themselves."""
        values = np.array([update.norms for update in updates], np.float64)  # [n updates, n rows]
        is_bad = np.zeros(values.shape, bool)
        for row, update in zip(is_bad, updates, strict=True):
            row[list(update.bad)] = True
        is_scalar = np.broadcast_to(np.arange(values.shape[1]) >= self._n_norms, values.shape)
        is_bad[is_scalar] = ~np.isfinite(values[is_scalar])
        with np.errstate(over="ignore", invalid="ignore"):  # a norm of float64 parameters may be that large
            sumsq = np.where(is_bad, 0.0, np.square(values))
        counts = {"n_nan": np.where(is_scalar, np.isnan(values), is_bad)}
        if not is_scalar.any():
            return {"sumsq": sumsq.ravel(), "n_nan": counts["n_nan"].astype(np.int64).ravel()}
        is_number = is_scalar & ~is_bad
        value = np.where(is_number, values, 0.0)
        counts |= {
            "n_posinf": is_scalar & (values == np.inf), "n_neginf": is_scalar & (values == -np.inf),
            "n_hist": is_number, "n_zero": is_number & (values == 0),
        }  # fmt: skip
        there = {"min": is_number, "max": is_number, "absmin": is_number & (values != 0)}
        return {
            "sumsq": sumsq.ravel(), "sum": value.ravel(), "absmax": np.abs(value).ravel(),
            **{name: flags.astype(np.int64).ravel() for name, flags in counts.items()},
            **{
                name: pa.array((np.abs(value) if name == "absmin" else value).ravel(), mask=~flags.ravel())
                for name, flags in there.items()
            },
        }  # fmt: skip


class NormRows(Sequence[Reading]):
    """The rows of one update.

    Args:
        template: of its rows.
        step: of the update.
        first_order: place of the first row in the step; the others follow.
        norms: L2 norm of each gradient, then the numbers of the run.
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
        row, value, is_bad = self.template.rows[at], self.norms[at], at in self.bad
        if row.port == SCALAR_PORT:
            summary = scalar_summary(value)
        else:
            summary = Summary(n=row.summary.n, sumsq=0.0 if is_bad else value * value, n_nan=int(is_bad))
        return Reading(
            step=self.step, microbatch=row.microbatch, phase=row.phase, site=row.site, port=row.port,
            order=self.first_order + at, dtype=row.dtype, shape=row.shape, module=row.module, summary=summary,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Reading]:
        return (self[i] for i in range(len(self)))
