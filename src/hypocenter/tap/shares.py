"""What a tensor of a batch is made of, as shares of a sample of its elements: padding, labels that count, classes.

Of all tensors of a batch that are on one device at once, in a fixed number of kernels; nothing is transferred here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter import batch_numbers
from hypocenter.batch_numbers import N_CLASSES, SAMPLE
from hypocenter.tap import row_digests


def shares(tables: Sequence[Tensor], first_whole: int) -> Any:
    """Return float32 [tensors, batch_numbers.N_SHARES]; from the host it is a NumPy array.

    Args:
        tables: of `hypocenter.tap.row_digests.as_rows`, on one device, none of them empty.
        first_whole: which of them is the first of whole numbers; -1: none.
    """
    device = tables[0].device
    taken = [table.view(-1)[_places(table.numel(), device)].float() for table in tables]
    values = torch.stack(taken)  # [tensors, 2, SAMPLE]
    shapes = tuple((table.shape[0], table.shape[1]) for table in tables)
    if not row_digests.is_on_host(tables[0]):
        return _on_device(values, _numbers_on(device, shapes), first_whole)
    is_whole = [not table.is_floating_point() for table in tables]
    return batch_numbers.shares(values.numpy(), shapes, is_whole, first_whole)


def shares_on_host(tables: Sequence[NDArray[Any]], first_whole: int) -> NDArray[np.float32]:
    """Return the shares of tables [rows, elements] of values that NumPy has; see `shares`."""
    values = np.empty((len(tables), 2, SAMPLE), np.float32)
    shapes: list[tuple[int, int]] = []
    is_whole: list[bool] = []
    for told, table in zip(values, tables, strict=True):
        taken = table.take(batch_numbers.places(table.size))
        if table.dtype == np.float64:
            with np.errstate(over="ignore"):
                told[:] = taken
        else:
            told[:] = taken
        shapes.append((len(table), table.shape[1]))
        is_whole.append(table.dtype.kind != "f")
    return batch_numbers.shares(values, shapes, is_whole, first_whole)


def _on_device(values: Tensor, shapes: Tensor, first_whole: int) -> Tensor:
    here, after = values.unbind(1)
    in_order = here.sort().values
    means = [here == in_order[:, :1], here == in_order[:, -1:], here == after]
    n_different = (in_order[:, 1:] != in_order[:, :-1]).sum(1) + 1.0
    counts = here >= 0
    same = (counts[:, None] & (here[:, None] == values[first_whole])).sum(2) / (counts.sum(1, keepdim=True) + 1e-6)
    sizes = shapes.prod(1)
    row = here.abs().argmax(1) * sizes // SAMPLE // shapes[:, 1]
    classes = here[:, :, None] % N_CLASSES == _range_on(values.device)
    shares = torch.cat([torch.stack(means, 1).sum(2), classes.sum(1)], 1) / SAMPLE
    told = [shares[:, :3], (n_different / sizes.clamp(max=SAMPLE))[:, None], same, row[:, None], shares[:, 3:]]
    return torch.cat(told, 1)


@functools.lru_cache(maxsize=64)
def _places(n: int, device: torch.device) -> Tensor:
    """Return where a sample of `n` elements stands, and the element after each: [2, SAMPLE]."""
    return torch.from_numpy(batch_numbers.places(n)).to(device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def _numbers_on(device: torch.device, shapes: tuple[tuple[int, int], ...]) -> Tensor:
    return torch.tensor(shapes, dtype=torch.float32, device="cpu").to(device, non_blocking=True)


@functools.lru_cache(maxsize=8)
def _range_on(device: torch.device) -> Tensor:
    return torch.arange(N_CLASSES, dtype=torch.float32, device=device)
