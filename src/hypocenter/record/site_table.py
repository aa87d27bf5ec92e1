"""The sites of a run as one table: of each the latest reading, and the worst it ever was."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

from hypocenter.nouns import Reading
from hypocenter.record.all_rows import AllRows
from hypocenter.record.norm_rows import NormRows, NormTemplate

COLUMNS = (
    "phase", "site", "port", "module", "dtype", "step", "n", "n_nan", "n_inf", "absmax", "rms", "largest", "n_bad",
)  # fmt: skip
"""Of the latest reading, up to `rms`; `largest` absolute value and `n_bad` non-finite values of any step."""
MOST_SITES = 5_000  # more make no table that anybody reads

Cell = str | int | float | None


class SiteTable:
    """Takes readings and makes a table of at most `MOST_SITES` rows, in the order in which sites came."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], tuple[Reading, float, int]] = {}
        self._norms: dict[NormTemplate, NormRows] = {}  # the latest of each, while they are finite

    def take(self, readings: Sequence[Reading]) -> None:
        """Keep what is newest and what is worst; numbers of the run itself (port `value`) are no sites."""
        if isinstance(readings, AllRows):
            if (norms := readings.norms) is not None:
                self._norms[norms.template] = norms
                if norms.bad:
                    self._each(self._norms.pop(norms.template))
            readings = readings.rows
        self._each(readings)

    def _each(self, readings: Iterable[Reading]) -> None:
        for reading in readings:
            key = reading.phase, reading.site, reading.port
            if reading.port == "value" or (key not in self._rows and len(self._rows) >= MOST_SITES):
                continue
            _, largest, n_bad = self._rows.get(key, (None, 0.0, 0))
            summary = reading.summary
            self._rows[key] = reading, max(largest, summary.absmax), n_bad + summary.n_nonfinite

    def rows(self) -> list[list[Cell]]:
        """Return one row for each site, in the order of `COLUMNS`; extremes of norms alone are None."""
        while self._norms:
            self._each(self._norms.popitem()[1])
        return [_row(*kept) for kept in self._rows.values()]

    def csv(self) -> str:
        """Return the rows as CSV with a head."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *self.rows()])
        return text.getvalue()


def _row(reading: Reading, largest: float, n_bad: int) -> list[Cell]:
    summary = reading.summary
    n_finite = summary.n - summary.n_nonfinite
    has_extremes = summary.max is not None
    return [
        reading.phase, reading.site, reading.port, reading.module, reading.dtype, reading.step, summary.n,
        summary.n_nan, summary.n_posinf + summary.n_neginf, summary.absmax if has_extremes else None,
        math.sqrt(summary.sumsq / n_finite) if n_finite > 0 else None, largest or None, n_bad,
    ]  # fmt: skip
