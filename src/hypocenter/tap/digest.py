"""64-bit digests of the exact bits of tensors: equal bits have equal digests, on any device, rank and layout.

The bytes are read in logical (row-major) order as 64-bit words, the last one filled with zeros. A word w stands at
column j of row i of a table of ROW columns, and h is its upper half (signed). The digest is, modulo 2**64,

    Σ_i POWER**i · Σ_j (w · low_j + h · high_j)  +  LENGTH · number of bytes

which is the multilinear hash of Carter and Wegman (1979) over 32-bit halves with 64-bit keys. All keys and POWER are
odd, so a change within one half (of any one bit, of one float32) changes the digest for sure; other changes go
unnoticed with a probability of about 2**-32. It is no defence against somebody who wants two tensors to agree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from hypocenter.batch_numbers import LENGTH, POWER, ROW, WORD, keys, of_rows, signed
from hypocenter.tap.host_memory import bytes_of, is_there

ROWS_AT_ONCE = 128  # rows in one kernel of a device that is not a CPU: temporaries of 32 MiB
SMALL = 1 << 11  # words; smaller tensors are packed together, for a kernel call each would cost more than reading them
PACK = 1 << 17  # words in one pack: temporaries of 1 MiB


def digests(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Return digests as 0-d int64 tensors on the tensors' devices, without a transfer and without waiting.

    A DTensor is its local shard. None for what has no values here (meta, fake, sparse, quantised, empty, freed).
    """
    out: list[Tensor | None] = [None] * len(tensors)
    small: dict[torch.device, list[tuple[int, Tensor, int]]] = {}
    with torch.no_grad():
        for index, tensor in enumerate(tensors):
            values = _values(tensor)
            if values is None:
                continue
            n_bytes = values.numel() * values.itemsize
            if n_bytes <= SMALL * WORD:
                small.setdefault(values.device, []).append((index, _words(values.reshape(-1)), n_bytes))
            else:
                out[index] = _large(values) + signed(LENGTH * n_bytes)
        for items in small.values():
            for pack in _packs(items):
                for (index, _, _), digest in zip(pack, _packed(pack), strict=True):
                    out[index] = digest
    return out


def to_host(found: Sequence[Tensor | None]) -> list[int | None]:
    """Bring digests to the host as numbers, with one transfer per device."""
    return to_host_with(found, ())[0]


def to_host_with(
    found: Sequence[Tensor | None], vectors: Sequence[Tensor | None]
) -> tuple[list[int | None], list[tuple[float, ...] | None]]:
    """Bring digests and float32 vectors of an even number of elements to the host, still one transfer per device."""
    out: list[int | None] = [None] * len(found)
    told: list[tuple[float, ...] | None] = [None] * len(vectors)
    for device in {each.device for each in (*found, *vectors) if each is not None}:
        ones = [(i, each) for i, each in enumerate(found) if each is not None and each.device == device]
        here = [(i, each) for i, each in enumerate(vectors) if each is not None and each.device == device]
        many = [(i, each.view(torch.int64)) for i, each in here]
        host = torch.cat([*(each.reshape(1) for _, each in ones), *(words for _, words in many)]).cpu().numpy()
        for (index, _), number in zip(ones, host[: len(ones)].tolist(), strict=True):
            out[index] = number
        begin = len(ones)
        for index, words in many:
            told[index] = tuple(host[begin : (begin := begin + len(words))].view(np.float32).tolist())
    return out, told


def _values(tensor: Tensor) -> Tensor | None:
    """Return the dense real values on this rank, detached; None when there are none."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # type: ignore[operator]
    if hasattr(tensor, "wait") and type(tensor).__name__ == "AsyncCollectiveTensor":
        tensor = tensor.wait()  # type: ignore[operator]
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta" or tensor.numel() == 0:
        return None
    if type(tensor).__name__ == "FakeTensor" or not is_there(tensor):
        return None
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg()


def _words(flat: Tensor) -> Tensor:
    """Return a flat tensor as int64 words; it is copied where it does not start or end on a word."""
    flat = flat.contiguous()  # an expanded tensor is still one after reshape(-1)
    per_word = max(1, WORD // flat.itemsize)
    missing = -flat.numel() % per_word
    if missing:
        raw = flat.view(_integer(flat.itemsize)) if flat.itemsize > 1 else flat.view(torch.uint8)
        filled = raw.new_zeros(flat.numel() + missing)
        filled[: flat.numel()] = raw
        return filled.view(torch.int64)
    if flat.storage_offset() * flat.itemsize % WORD:
        flat = flat.clone()
    return flat.view(torch.int64)


def _integer(itemsize: int) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[itemsize]


def _large(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        return torch.tensor(
            of_rows(bytes_of(block).view(np.int64) for block in _blocks(values)), dtype=torch.int64, device="cpu"
        )
    low, high = _keys(values.device)
    total: Tensor | None = None
    for block in _blocks(values):
        for first in range(0, block.numel(), ROW * ROWS_AT_ONCE):
            part = block[first : first + ROW * ROWS_AT_ONCE]
            total = _add_rows(total, part, low, high)
    assert total is not None
    return total


def _add_rows(total: Tensor | None, words: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Append rows to a digest by Horner's rule; only the last row of a tensor may be shorter than ROW."""
    n_whole = words.numel() // ROW
    if words.device.type != "cpu" and n_whole > 1:
        rows = words[: n_whole * ROW].view(n_whole, ROW)
        sums = (rows * low).sum(1) + ((rows >> 32) * high).sum(1)
        sum_of_rows = (sums * _powers(words.device)[ROWS_AT_ONCE - n_whole :]).sum()
        total = sum_of_rows if total is None else total * signed(pow(POWER, n_whole, 1 << 64)) + sum_of_rows
        words = words[n_whole * ROW :]
    for first in range(0, words.numel(), ROW):
        row = words[first : first + ROW]
        n = row.numel()
        value = (row * low[:n]).sum() + ((row >> 32) * high[:n]).sum()
        total = value if total is None else total * signed(POWER) + value
    return total if total is not None else words.new_zeros(())


def _blocks(values: Tensor) -> Iterator[Tensor]:
    """Yield the words in logical order, in blocks; each but the last is a whole number of rows."""
    if values.is_contiguous():
        yield from _cut(values.view(-1))
        return
    per_row = ROW * WORD // values.itemsize
    carried: Tensor | None = None
    for piece in _pieces(values, per_row * ROWS_AT_ONCE // 4):
        carried = piece if carried is None else torch.cat([carried, piece])
        n = carried.numel() // per_row * per_row
        if n:
            yield _words(carried[:n])
            carried = carried[n:].clone()
    if carried is not None and carried.numel():
        yield _words(carried)


def _cut(flat: Tensor) -> Iterator[Tensor]:
    """Yield a contiguous tensor as words, copied at most block by block."""
    per_word = max(1, WORD // flat.itemsize)
    if flat.storage_offset() * flat.itemsize % WORD == 0:
        n = flat.numel() // per_word * per_word
        n = n - n % (per_word * ROW) if n < flat.numel() else n
        if n:
            yield flat[:n].view(torch.int64)
        if n < flat.numel():
            yield _words(flat[n:])
        return
    per_block = ROW * WORD // flat.itemsize * (ROWS_AT_ONCE // 4)
    for first in range(0, flat.numel(), per_block):
        yield _words(flat[first : first + per_block])


def _pieces(values: Tensor, n_most: int) -> Iterator[Tensor]:
    """Yield contiguous flat copies of at most about `n_most` elements each, in logical order."""
    if values.numel() <= n_most or values.ndim == 0:
        yield values.reshape(-1)
    elif (inner := math.prod(values.shape[1:])) > n_most:
        for index in range(values.shape[0]):
            yield from _pieces(values[index], n_most)
    else:
        for part in values.split(max(1, n_most // inner)):
            yield part.reshape(-1)


Item = tuple[int, Tensor, int]  # index, words, number of bytes


def _packs(items: Sequence[Item]) -> Iterator[list[Item]]:
    pack: list[Item] = []
    n_words = 0
    for item in items:
        if pack and n_words + item[1].numel() > PACK:
            yield pack
            pack, n_words = [], 0
        pack.append(item)
        n_words += item[1].numel()
    if pack:
        yield pack


def _packed(pack: Sequence[Item]) -> Sequence[Tensor]:
    """Return the digests of small tensors, all computed in the same few kernels."""
    device = pack[0][1].device
    low, high, ends, lengths = _layout(device, tuple((words.numel(), n_bytes) for _, words, n_bytes in pack))
    flat = torch.cat([words for _, words, _ in pack])
    upper = flat >> 32
    sums = flat.mul_(low).addcmul_(upper, high).cumsum(0)[ends]  # wraps modulo 2**64, and so do differences
    sums[1:] -= sums[:-1].clone()
    return (sums + lengths).unbind()


@functools.lru_cache(maxsize=16)
def _layout(device: torch.device, sizes: tuple[tuple[int, int], ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the keys of all words of a pack, the last word of each tensor, and what each length adds."""
    low, high = _keys(device)
    numbers = [end - 1 for end in accumulate(n for n, _ in sizes)], [signed(LENGTH * n_bytes) for _, n_bytes in sizes]
    # pageable memory is staged before the call returns, and the host does not wait for the device
    ends, lengths = torch.tensor(numbers, dtype=torch.int64, device="cpu").to(device, non_blocking=True)
    return torch.cat([low[:n] for n, _ in sizes]), torch.cat([high[:n] for n, _ in sizes]), ends, lengths


@functools.lru_cache(maxsize=16)
def _keys(device: torch.device) -> tuple[Tensor, Tensor]:
    low, high = keys()
    return torch.from_numpy(low).to(device), torch.from_numpy(high).to(device)


@functools.lru_cache(maxsize=16)
def _powers(device: torch.device) -> Tensor:
    """Return POWER to the ROWS_AT_ONCE - 1, ..., 1, 0."""
    return torch.tensor([signed(pow(POWER, i, 1 << 64)) for i in reversed(range(ROWS_AT_ONCE))], device=device)
