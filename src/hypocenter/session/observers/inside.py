"""What is inside of the tensors of a batch: digests of rows, and shares of their elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.batch_numbers import N_SHARES
from hypocenter.detect.replica_rows import ROW_PLACES
from hypocenter.session.batch_readings import Inside
from hypocenter.tap import row_digests
from hypocenter.tap.row_digests import Kept, as_rows, halves, kept, kept_on_host, whole
from hypocenter.tap.shares import shares, shares_on_host

Arrive: TypeAlias = Callable[[str, Inside], None]


class Told:
    """Puts digests and shares that have arrived where they belong.

    Args:
        found: by micro-batch and name.
    """

    def __init__(self, found: dict[tuple[int, str], Inside], microbatch: int) -> None:
        self._found, self._microbatch = found, microbatch

    def __call__(self, name: str, inside: Inside) -> None:
        self._found[self._microbatch, name] = inside


def look(
    given: Sequence[tuple[str, Tensor, NDArray[Any] | None]], arrive: Arrive
) -> Iterator[tuple[Tensor, Callable[[Any], None]]]:
    """Tell at once what is on the host; yield what is elsewhere as (float32 vector to take there, its reader).

    Args:
        given: name, tensor, and its values in a row where NumPy can read them.
        arrive: told of each.
    """
    others = [(name, tensor) for name, tensor, values in given if values is None]
    if any(row_digests.is_on_host(tensor) for _, tensor in others):  # one of them says of all which rows are kept
        others = [(name, tensor) for name, tensor, _ in given]
    else:
        look_at_host(given, arrive)
    by_device: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, tensor in others:
        table = as_rows(tensor)
        if table is not None:
            by_device.setdefault(table.device, []).append((name, table))
    for named in by_device.values():
        names, tables = [name for name, _ in named], [table for _, table in named]
        first_whole = next((i for i, each in enumerate(tables) if _is_whole(each)), -1)
        rows, told = kept(tables), shares(tables, first_whole)
        if row_digests.is_on_host(tables[0]):
            _tell(names, rows, told, arrive)
        else:
            parts = [told.reshape(-1)]
            if rows is not None:
                parts += [rows.positions.float(), *(halves(each).reshape(-1) for each in rows.digests.values())]
            numbers = torch.cat(parts)
            if numbers.numel() % 2:
                numbers = torch.nn.functional.pad(numbers, (0, 1))
            have_rows, n_kept = ([*rows.digests], len(rows.positions)) if rows is not None else ([], 0)
            yield numbers, _Reader(names, have_rows, n_kept, arrive)


def look_at_host(given: Sequence[tuple[str, Tensor, NDArray[Any] | None]], arrive: Arrive) -> None:
    """Tell at once what is in tensors whose values NumPy can read. Of most programs that is all, at each step."""
    names: list[str] = []
    arrays: list[NDArray[Any]] = []
    first_whole = -1
    for name, tensor, values in given:
        if values is None or not tensor.dim():
            continue
        if first_whole < 0 and values.dtype.kind in "iu":
            first_whole = len(arrays)
        names.append(name)
        arrays.append(values.reshape(tensor.shape[0], -1))
    if arrays:
        _tell(names, kept_on_host(arrays), shares_on_host(arrays, first_whole), arrive)


def _tell(names: Sequence[str], rows: Kept | None, told: NDArray[np.float32], arrive: Arrive) -> None:
    digests = {} if rows is None else rows.digests
    for at, name in enumerate(names):
        each = None if rows is None or at not in digests else digests[at] * ROW_PLACES + rows.positions
        arrive(name, (() if each is None else tuple(each.tolist()), tuple(told[at].tolist())))


def _is_whole(table: Tensor) -> bool:
    return not table.is_floating_point() and table.dtype != torch.bool


class _Reader:
    """Takes apart the numbers that have arrived. Holds no tensor."""

    def __init__(self, names: Sequence[str], have_rows: Sequence[int], n_kept: int, arrive: Arrive) -> None:
        self._names, self._have_rows, self._n_kept, self._arrive = names, have_rows, n_kept, arrive

    def __call__(self, numbers: Sequence[float]) -> None:
        n, begin = self._n_kept, len(self._names) * N_SHARES
        positions = numbers[begin : begin + n]
        digests: dict[int, tuple[int, ...]] = {}
        for i, at in enumerate(self._have_rows):
            pairs = numbers[begin + n + 2 * n * i : begin + n + 2 * n * (i + 1)]
            digests[at] = tuple(
                whole(pairs[2 * j], pairs[2 * j + 1]) * ROW_PLACES + int(position)
                for j, position in enumerate(positions)
            )
        for at, name in enumerate(self._names):
            self._arrive(name, (digests.get(at, ()), tuple(numbers[N_SHARES * at : N_SHARES * (at + 1)])))
