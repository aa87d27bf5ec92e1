"""Step records of a rank as columns; each is made a noun when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hypocenter.detect.columns import Bools, Floats, Ints
from hypocenter.nouns import StepRecord

if TYPE_CHECKING:
    import pyarrow as pa

_AHEAD = 1024


class StepColumns:
    """The records of one rank, one for each step, in rising order.

    Args:
        table: in the columns of record.schema.STEPS, as they were written: several of one step become one.
    """

    def __init__(self, table: pa.Table) -> None:
        step = table["step"].to_numpy()
        self._table = table
        self._merged: dict[int, StepRecord] = {}
        self._ahead: tuple[int, list[StepRecord]] = (0, [])  # from which on, and those that were made last
        self.steps: Ints = step
        if len(step) > 1 and (np.diff(step) <= 0).any():
            self._tidy(step)

    def _tidy(self, step: Ints) -> None:
        from hypocenter.record.schema import steps_from

        order = np.argsort(step, kind="stable")
        self.steps, first, counts = np.unique(step[order], return_index=True, return_counts=True)
        several = {int(s): order[f : f + c] for s, f, c in zip(self.steps, first, counts, strict=True) if c > 1}
        for number, rows in several.items():
            records = list(steps_from(self._table.take(rows)))
            whole = records[0]
            for record in records[1:]:
                whole = merged(whole, record)
            self._merged[number] = whole
        self._table = self._table.take(order[first])

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, name: str) -> Floats:
        """Return a column in the order of `steps`; NaN where there is no value, or where it is NaN: see `has`."""
        values = self._table[name].to_numpy().astype(np.float64)
        for step, record in self._merged.items():
            value = getattr(record, name)
            values[np.searchsorted(self.steps, step)] = np.nan if value is None else value
        return values

    def has(self, name: str) -> Bools:
        """Return which records have a value in this column."""
        column = self._table[name]
        found = np.ones(len(self), np.bool_) if not column.null_count else column.is_valid().to_numpy()
        if self._merged:
            found = found.copy()
        for step, record in self._merged.items():
            found[np.searchsorted(self.steps, step)] = getattr(record, name) is not None
        return found

    @cached_property
    def is_bad(self) -> Bools:
        """Which steps had a loss or gradients that were not finite."""
        return (
            (self.has("loss") & ~np.isfinite(self.column("loss")))
            | (self.has("grad_norm") & ~np.isfinite(self.column("grad_norm")))
            | (self.column("n_bad_grads") > 0)
        )

    @cached_property
    def is_unusual(self) -> Bools:
        """Which steps were not finite, skipped, of a loss scaler, or have evidence."""
        found = self._table["finding"].to_numpy() if not self._merged else self._findings()
        return self.is_bad | (self.column("skipped") > 0) | self.has("loss_scale") | (found != "")

    def _findings(self) -> Bools:
        own = self._table["finding"].to_numpy().copy()
        for step, record in self._merged.items():
            own[np.searchsorted(self.steps, step)] = record.finding
        return own

    def has_step(self, step: int) -> bool:
        """Return whether there is a record of the step."""
        index = int(np.searchsorted(self.steps, step))
        return index < len(self.steps) and bool(self.steps[index] == step)

    def at(self, step: int) -> StepRecord | None:
        """Return the record of a step; None if there is none."""
        if not self.has_step(step):
            return None
        index = int(np.searchsorted(self.steps, step))
        return self._merged.get(step) or self.nth(index)

    def nth(self, index: int) -> StepRecord:
        """Return one record. Who goes through them in order has many made at once, which costs little more than one."""
        start, ahead = self._ahead
        if not start <= index < start + len(ahead):
            is_next = index == start + len(ahead)
            start, ahead = self._ahead = index, list(self.between(index, index + (_AHEAD if is_next else 1)))
        return ahead[index - start]

    def between(self, start: int, stop: int) -> Iterator[StepRecord]:
        """Yield the records from the `start`-th to before the `stop`-th."""
        from hypocenter.record.schema import steps_from

        for record in steps_from(self._table.slice(start, stop - start)):
            yield self._merged.get(record.step, record)


def merged(first: StepRecord, second: StepRecord) -> StepRecord:
    """Merge two records of a step in which several optimizers updated: whatever went wrong in one of them is kept."""
    is_bad = first.loss is not None and not np.isfinite(first.loss)
    is_norm_bad = first.grad_norm is not None and not np.isfinite(first.grad_norm)
    return replace(
        second,
        n_microbatches=first.n_microbatches + second.n_microbatches,
        loss=first.loss if is_bad or second.loss is None else second.loss,
        grad_norm=first.grad_norm if is_norm_bad else second.grad_norm,
        loss_scale=first.loss_scale if second.loss_scale is None else second.loss_scale,
        skipped=first.skipped or second.skipped,
        n_bad_grads=first.n_bad_grads + second.n_bad_grads,
        finding=first.finding or second.finding,
    )
