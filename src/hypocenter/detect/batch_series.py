"""The batches of a rank in columns: whether all are new, and whether their fields stay as they were.

Each answer is sure or not given: where columns do not tell, the batches are looked at one by one
(hypocenter.detect.batches, batch_rows, batch_fields).
"""

from __future__ import annotations

# pyright: reportUnknownMemberType=false
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hypocenter.detect.batch_fields import (
    AWAY,
    BOUND,
    CLASSES,
    ERRORS,
    INPUT,
    KNOWN,
    LEAST,
    NEXT_INPUT,
    ROW,
    SHARE,
    WINDOW,
)
from hypocenter.detect.columns import Bools, Columns, Floats, Ints, by_step, mixed
from hypocenter.detect.replica_rows import ATTEMPT, BATCH_LOSS, FIELD_PORT, INDICES_PORT, LOADER, ROW_PLACES
from hypocenter.detect.spikes import may_jump

if TYPE_CHECKING:
    import pyarrow as pa

_NEARLY = 1.0 - 1e-9  # what is so close to a limit is looked at one by one
_MEASURES = ("n", "min", "max", "absmax", "sum", "sumsq")


@dataclass(slots=True)
class _Site:
    """One tensor of the batch, over micro-batches."""

    is_float: bool = False
    widths: set[int] = field(default_factory=set[int])  # values of a row
    numbers: list[Floats] = field(default_factory=list[Floats])  # _MEASURES
    shares: list[NDArray[np.float32]] = field(default_factory=list[NDArray[np.float32]])
    is_uneven: bool = False  # other shares in one batch than in another, or constant rows in some
    constant: set[bool] = field(default_factory=set[bool])  # whether rows hold one value only
    rows: list[Ints] = field(default_factory=list[Ints])  # their digests

    def is_steady(self) -> bool:
        """Whether `batch_fields.Field` finds no change, for sure."""
        n, low, high, absmax, total, squares = np.concatenate(self.numbers, axis=1)
        seen = (n >= LEAST) & ~np.isnan(low) & ~np.isnan(high)
        is_constant = (low == high)[seen]
        if is_constant.any():
            return bool(is_constant.all())
        n, low, high, absmax, total, squares = (each[seen] for each in (n, low, high, absmax, total, squares))
        if not len(n):
            return True
        mean = total / n
        spread = np.sqrt(np.maximum(0.0, squares / n - mean * mean))
        if self.is_uneven or len(self.constant) > 1 or spread.min() <= 0:
            return False
        away = np.abs(mean - _usual(mean)) / _usual(spread)
        if ((away > AWAY * _NEARLY) & (away * np.sqrt(n) > ERRORS * _NEARLY)).any():
            return False
        if self.is_float and any(map(may_jump, (absmax, np.sqrt(squares / n), 1.0 / spread))):
            return False
        if not self.shares:
            return True
        return _are_steady(np.concatenate(self.shares)) and not (_moves(low) or _moves(high))


def _are_steady(shares: NDArray[np.float32]) -> bool:
    """Whether no share is farther from the usual than is remarked on, for sure; of classes their distance."""
    inputs = shares[:, [INPUT, NEXT_INPUT]]
    if ((inputs.max(axis=0) >= BOUND) & (inputs.min(axis=0) < BOUND / 2)).any():
        return False
    single = np.delete(shares[:, :CLASSES], [INPUT, NEXT_INPUT, ROW], axis=1).astype(np.float64)
    classes = shares[:, CLASSES:].astype(np.float64)
    columns = list(single.T)
    if len(classes) > WINDOW:
        total = np.concatenate([np.zeros((1, classes.shape[1])), np.cumsum(classes, axis=0)])
        usual = (total[WINDOW:-1] - total[: -1 - WINDOW]) / WINDOW
        columns.append(np.abs(classes[WINDOW:] - usual).sum(axis=1) / 2)
    return not any(_departs(column, SHARE) for column in columns)


def _departs(values: Floats, most: float) -> bool:
    """Whether a value may be farther than so much from what is usual."""
    nearly = most * _NEARLY
    return bool(len(values) and np.ptp(values) > nearly and (np.abs(values - _usual(values)) > nearly).any())


def _usual(values: Floats) -> Floats:
    """For each value the median of the WINDOW before it, of fewer at first; the first itself."""
    first = [values[0], *(np.sort(values[:at])[at // 2] for at in range(1, min(WINDOW, len(values))))]
    if len(values) <= WINDOW:
        return np.array(first)
    past = sliding_window_view(values, WINDOW)[:-1]
    return np.concatenate([first, np.partition(past, WINDOW // 2, axis=1)[:, WINDOW // 2]])


def _moves(ends: Floats) -> bool:
    """Whether an end of the range changes after KNOWN batches with the same."""
    if len(ends) <= KNOWN or (ends == ends[0]).all():
        return False
    same = np.concatenate([[False], ends[1:] == ends[:-1]])
    return bool((sliding_window_view(same, KNOWN - 1)[:-1].all(axis=1) & ~same[KNOWN - 1 :]).any())


class BatchSeries:
    """Takes rows of batches in the order they were written."""

    def __init__(self) -> None:
        self._sites: dict[str, _Site] = {}
        self._keys: list[Ints] = []
        self._is_odd = False  # something that columns do not tell about

    def add(self, columns: Columns, of_batches: Bools) -> None:
        """Take in the kinds of rows of a batch of readings that are of phase data and of a site of a batch."""
        rows, kinds = columns.of(of_batches), columns.kinds
        is_of_loader = kinds.equal("site", LOADER) & kinds.equal("port", INDICES_PORT)
        is_again = rows.numbers("recompute") | rows.numbers("replay")
        self._is_odd |= bool(rows.rows(kinds.equal("site", ATTEMPT) | is_of_loader).any() or is_again.any())
        at_all_steps = kinds.equal("port", FIELD_PORT) | kinds.begins("dtype", "int", "uint", "bool")
        rows = rows.only(rows.rows(at_all_steps) & rows.has("digest"))
        if not rows.n:
            return
        batch = rows.steps * 65_537 + rows.numbers("microbatch").astype(np.int64)
        self._keys.append(by_step(batch, mixed(rows.digests() ^ rows.hashes("site")))[1])
        index, names = rows.words("site")
        for code in np.unique(index):
            _add(self._sites.setdefault(names[code], _Site()), rows.only(index == code))

    @cached_property
    def are_all_new(self) -> bool:
        """No batch, and no row of the tensor that tells the rows, came twice."""
        if self._is_odd or (self._keys and _has_twins(self._keys)):
            return False
        telling = [site for name, site in self._sites.items()
                   if not name.startswith(BATCH_LOSS) and any(map(len, site.rows))]  # fmt: skip
        if any(len(site.widths) != 1 for site in telling):
            return False
        widest = max((max(site.widths) for site in telling), default=0)
        return widest <= 1 or not any(_has_twins(site.rows) for site in telling if max(site.widths) == widest)

    @cached_property
    def are_steady(self) -> bool:
        """No field of the batch changes."""
        return not self._is_odd and all(site.is_steady() for site in self._sites.values())


def _add(site: _Site, rows: Columns) -> None:
    site.is_float |= bool(rows.rows(rows.kinds.having("dtype", lambda name: "float" in name)).any())
    site.numbers.append(np.stack([rows.numbers(name).astype(np.float64) for name in _MEASURES]))
    shapes = rows.column("shape")
    sizes = _square(shapes)
    site.widths |= {-1, -2} if sizes is None else set(np.prod(sizes[:, 1:], axis=1).astype(int).tolist())
    shares = rows.column("shares")
    if shares.null_count < len(shares):
        _add_shares(site, _square(shares))
    digests: Ints = rows.column("row_digests").flatten().to_numpy() // ROW_PLACES
    site.constant |= set((digests == 0).tolist()) if (digests == 0).any() else {False}
    site.rows.append(digests[digests != 0])


def _add_shares(site: _Site, shares: Floats | None) -> None:
    if shares is not None and not shares.shape[1]:
        return
    if shares is None or shares.shape[1] < CLASSES or (site.shares and site.shares[0].shape[1] != shares.shape[1]):
        site.is_uneven = True
        return
    site.shares.append(shares.astype(np.float32))


def _square(lists: pa.ListArray) -> Floats | None:
    """Lists that are equally long, as a matrix; None where they are not."""
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    if len(lengths) and lengths.min() != lengths.max():
        return None
    return (
        lists.flatten()
        .to_numpy(zero_copy_only=False)
        .astype(np.float64)
        .reshape(len(lists), -1 if len(lists) and lengths[0] else 0)
    )


def _has_twins(parts: Sequence[Ints]) -> bool:
    values = np.sort(np.concatenate(parts))
    return bool((values[1:] == values[:-1]).any())
