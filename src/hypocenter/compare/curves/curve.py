"""The curves of one training: what every reader gives and every comparison takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

_LOGGED_LEAST = 3  # distinct values from which the number of printed decimals can be told
_ABSURD = 1e30  # no loss is as large
_DECIMALS_MOST = 6  # printed with more: as good as exact


def is_number(values: Values) -> npt.NDArray[np.bool_]:
    """Tell which values are finite, and not so large that their squares would overflow."""
    return np.isfinite(values) & (np.abs(values) < _ABSURD)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """One quantity over the steps of one training."""

    name: str  # canonical (names.py), or the log's own
    steps: Steps  # counted from 0, rising, each once
    values: Values  # as logged: NaN and infinities are kept
    label: str = ""  # as the log calls it
    is_mean: bool = False  # the mean over the steps since the one logged before, not the value of this step

    @property
    def interval(self) -> int:
        """The median number of steps between two entries; 1 for a single entry."""
        return max(1, int(np.median(np.diff(self.steps)))) if len(self.steps) > 1 else 1

    @property
    def quantum(self) -> float:
        """Unit of the last decimal that was printed (1e-3 of "10.649"); 0 when the values look exact."""
        finite = self.values[is_number(self.values)][:1000]
        if len(np.unique(finite)) < _LOGGED_LEAST:
            return 0.0
        for decimals in range(_DECIMALS_MOST + 1):
            scaled = finite * 10.0**decimals
            if np.all(np.abs(scaled - np.round(scaled)) <= 1e-9 * np.maximum(np.abs(scaled), 1.0)):
                return float(10.0**-decimals)
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """All series of one training, by name, and what is wrong with its log."""

    source: str  # path
    kind: str  # name of the reader
    series: dict[str, Series] = field(default_factory=dict)
    counts_from: int | None = None  # first step number of this kind of log; None: nobody says, steps are as logged
    digests: dict[int, str] = field(
        default_factory=dict
    )  # step -> digest `inputs-values` of its batch, of our own runs
    problems: tuple[str, ...] = ()

    @property
    def n_points(self) -> int:
        """The number of entries of all series together."""
        return sum(len(series.steps) for series in self.series.values())
