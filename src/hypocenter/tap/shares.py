"""What a tensor of a batch is made of, as shares of a sample of its elements: padding, labels that count, classes.

Of all tensors of a batch that are on one device at once, in a fixed number of kernels; nothing is transferred here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypocenter.tap import row_digests

SAMPLE = 1 << 8  # elements
N_CLASSES = 16  # whole numbers are counted by their remainder
N_SHARES = 7 + N_CLASSES
"""Share of elements that equal the smallest, the largest, the element after them; of different ones among them; of
those not below 0 that equal the element of the first tensor of whole numbers at the same place, at the one after it;
row of the largest magnitude; share of each class."""


def shares(tables: Sequence[Tensor], first_whole: int) -> Any:
    """[tensors, N_SHARES], float32: on the host as a NumPy array.

    Args:
        tables: of `hypocenter.tap.row_digests.as_rows`, on one device, none of them empty.
        first_whole: which of them is the first of whole numbers; -1: none.
    """
    device = tables[0].device
    taken = [table.view(-1)[_places(table.numel(), device)].float() for table in tables]
    values = torch.stack(taken)  # [tensors, 2, SAMPLE]
    sizes = tuple((table.numel(), table.shape[0]) for table in tables)
    is_whole = tuple(not table.is_floating_point() for table in tables)
    if not row_digests.is_on_host(tables[0]):
        return _on_device(values, _numbers_on(device, sizes), first_whole)
    return _on_host(values.numpy(), sizes, is_whole, first_whole)


def _on_host(values: Any, sizes: Sequence[tuple[int, int]], is_whole: Sequence[bool], first_whole: int) -> Any:
    out = np.zeros((len(values), N_SHARES), np.float32)
    for at, ((n, n_rows), (here, after)) in enumerate(zip(sizes, values, strict=True)):
        most, told = min(n, SAMPLE), out[at]
        in_order = np.sort(here)
        told[0] = in_order.searchsorted(in_order[0], "right") / SAMPLE
        told[1] = 1.0 - in_order.searchsorted(in_order[-1]) / SAMPLE
        told[2] = np.count_nonzero(here == after) / SAMPLE
        told[3] = (np.count_nonzero(in_order[1:] != in_order[:-1]) + 1) / most
        if not is_whole[at]:
            told[6] = int(abs(here).argmax()) * n // SAMPLE // (n // n_rows)
            continue
        told[7:] = np.bincount(here.astype(np.int64) % N_CLASSES, minlength=N_CLASSES) / SAMPLE
        if at != first_whole and n == sizes[first_whole][0]:
            counts = here >= 0
            n_counts = np.count_nonzero(counts) + 1e-6
            told[4] = np.count_nonzero(counts & (here == values[first_whole, 0])) / n_counts
            told[5] = np.count_nonzero(counts & (here == values[first_whole, 1])) / n_counts
    return out


def _on_device(values: Tensor, sizes: Tensor, first_whole: int) -> Tensor:
    here, after = values.unbind(1)
    in_order = here.sort().values
    means = [here == in_order[:, :1], here == in_order[:, -1:], here == after]
    n_different = (in_order[:, 1:] != in_order[:, :-1]).sum(1) + 1.0
    counts = here >= 0
    same = (counts[:, None] & (here[:, None] == values[first_whole])).sum(2) / (counts.sum(1, keepdim=True) + 1e-6)
    row = here.abs().argmax(1) * sizes[:, 0] // SAMPLE // (sizes[:, 0] / sizes[:, 1])
    classes = here[:, :, None] % N_CLASSES == _range_on(values.device)
    shares = torch.cat([torch.stack(means, 1).sum(2), classes.sum(1)], 1) / SAMPLE
    told = [shares[:, :3], (n_different / sizes[:, 0].clamp(max=SAMPLE))[:, None], same, row[:, None], shares[:, 3:]]
    return torch.cat(told, 1)


@functools.lru_cache(maxsize=64)
def _places(n: int, device: torch.device) -> Tensor:
    """Where a sample of `n` elements stands, and the element after each: [2, SAMPLE]."""
    at = torch.arange(SAMPLE, dtype=torch.int64, device="cpu") * n // SAMPLE
    return torch.stack([at, (at + 1) % n]).to(device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def _numbers_on(device: torch.device, sizes: tuple[tuple[int, int], ...]) -> Tensor:
    return torch.tensor(sizes, dtype=torch.float32, device="cpu").to(device, non_blocking=True)


@functools.lru_cache(maxsize=8)
def _range_on(device: torch.device) -> Tensor:
    return torch.arange(N_CLASSES, dtype=torch.float32, device=device)
