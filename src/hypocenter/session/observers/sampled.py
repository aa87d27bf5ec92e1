"""Strided samples of tensors, and numbers that are read from their devices together, later."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from hypocenter.session.framework import SAMPLE, Then
from hypocenter.tap.gradients import PLAIN_TYPES, SMALL, local, to_host
from hypocenter.tap.host_memory import is_there

_KIND = operator.attrgetter("dtype", "device", "layout")
_FORMAT, _LAYOUT, _IS_ON_HOST = map(operator.attrgetter, ("dtype", "layout", "is_cpu"))
NULL_REACHES = 1 << 44  # where no memory is, an address is an offset: below that, whatever tensors are that large
COPIED_AT_MOST = 1 << 20  # elements of a tensor that is not contiguous: a sample of it costs a copy of all


def sample(tensor: Tensor, size: int = SAMPLE, start: int = 0) -> Tensor | None:
    """At most `size` elements at an equal stride, the same for every tensor of this shape; a view where possible.

    Another `start` takes others, where there are.

    None for what has no values on this rank, and for large tensors whose elements do not lie in order.
    """
    values = local(tensor)
    if values is None:
        return None
    n = values.numel()
    if not values.is_contiguous():
        if n > COPIED_AT_MOST:
            return None
        values = values.reshape(-1)
    stride = -(-n // size)
    if stride == 1 and values.dim() == 1:
        return values
    first = start % stride
    # one operation where reshape and a slice are two: an audited step takes some hundred samples
    return values.as_strided((-(-(n - first) // stride),), (stride,), values.storage_offset() + first)


class Deferred:
    """Numbers on their way to the host: on the CPU at once, from a device with the next check of gradients.

    Args:
        ride: takes a float32 vector along in a transfer that is made anyway.

    Attributes:
        waiting: what has not been handed out, and who wants it.
    """

    def __init__(self, ride: Callable[[Tensor, Then], None] = lambda *_: None) -> None:
        self.waiting: list[tuple[Tensor, Then]] = []
        self._ride = ride

    def add(self, numbers: Tensor, then: Then) -> None:
        """Call `then` with these numbers (1-d) as soon as reading them makes nobody wait."""
        each = numbers, then
        self.waiting.append(each)
        if numbers.device.type == "cpu":
            self.read()
        else:
            self._ride(numbers.float(), lambda host: self._arrive(each, host))

    def _arrive(self, each: tuple[Tensor, Then], host: Sequence[float]) -> None:
        n_before = len(self.waiting)
        self.waiting = [other for other in self.waiting if other is not each]
        if len(self.waiting) < n_before:  # else somebody could not wait for it
            each[1](host)

    def read(self) -> None:
        """Transfer and hand out what is still waiting."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        by_device: dict[torch.device, list[tuple[Tensor, Then]]] = {}
        for numbers, then in waiting:
            by_device.setdefault(numbers.device, []).append((numbers, then))
        for each in by_device.values():
            host: list[float] = torch.cat([numbers.to(each[0][0].dtype) for numbers, _ in each]).tolist()
            for numbers, then in each:
                then(host[: numbers.numel()])
                host = host[numbers.numel() :]


def gathered(tensors: Sequence[Any], size: int, start: int = 0) -> tuple[Tensor, Sequence[int]] | None:
    """What `sample` takes of each, copied into one array, and how many elements that are; None of unlike kinds.

    Those of the host are read where they lie. Of others small ones are copied whole, all in one operation, and what is
    wanted of them is picked from that. Of those whose memory somebody has taken away, as FSDP does between uses, there
    are no elements.
    """
    if (taken := _from_memory(tensors, size, start)) is not None:
        return taken
    types = set(map(type, tensors))
    if not all(issubclass(each, Tensor) for each in types):
        return None
    kinds = set(map(_KIND, tensors))
    if len({kind[:2] for kind in kinds}) > 1:
        return None
    dtype, device, layout = next(iter(kinds))
    with torch.no_grad():
        is_plain = types <= PLAIN_TYPES and len(kinds) == 1 and layout is torch.strided and device.type != "meta"
        ns = tuple(map(Tensor.numel, tensors)) if is_plain and dtype.is_floating_point else (0,)
        addresses = np.fromiter(map(Tensor.data_ptr, tensors), np.int64) if all(ns) else None
        are_there = addresses is not None and (addresses.min() >= NULL_REACHES or all(map(is_there, tensors)))
        held = tensors
        if not are_there or max(ns) > SMALL:
            nothing = torch.empty(0, dtype=dtype, device="cpu" if device.type == "meta" else device)
            dense = [None if t is None or not is_there(t) else t for t in map(local, tensors)]
            few = [t if t is None or t.numel() <= SMALL else sample(t, size, start) for t in dense]
            held = [nothing if each is None else each for each in few]
            ns = tuple(map(Tensor.numel, held))
        found = (
            torch.cat([held[0].reshape(-1)]) if len(held) == 1 else _flatten_dense_tensors(held)
        )  # one is not copied
        if max(ns) <= size:
            return found, list(ns)
        picks, sizes = _picks_in_one(ns, size, start, found.device)
        return found.index_select(0, picks), sizes


def gathered_columns(
    columns: Sequence[Sequence[Any]], size: int, start: int = 0
) -> list[tuple[Tensor, Sequence[int]] | None]:
    """What `gathered` gives of each column; all that lie on the host in one format are read in one pass."""
    found: list[tuple[Tensor, Sequence[int]] | None] = [None] * len(columns)
    by_format: dict[Any, list[int]] = {}
    for number, column in enumerate(columns):
        by_format.setdefault(getattr(column[0], "dtype", None), []).append(number)
    for numbers in by_format.values():
        taken = _from_memory(list(chain.from_iterable(columns[number] for number in numbers)), size, start)
        if taken is None:
            for number in numbers:
                found[number] = gathered(columns[number], size, start)
            continue
        (values, sizes), first, begin = taken, 0, 0
        for number in numbers:
            here = sizes[first : first + len(columns[number])]
            found[number] = values[begin : begin + sum(here)], here
            first, begin = first + len(here), begin + sum(here)
    return found


def _from_memory(tensors: Sequence[Any], size: int, start: int) -> tuple[Tensor, Sequence[int]] | None:
    """The same of plain tensors of one format on the host, read where they lie; None of what does not lie in order.

    What it costs for each tensor is no operation of torch: an audited step takes some thousand samples.
    """
    if not PLAIN_TYPES.issuperset(map(type, tensors)) or not tensors[0].is_cpu:
        return None
    formats, ns = set(map(_FORMAT, tensors)), tuple(map(Tensor.numel, tensors))
    dtype = formats.pop()
    if formats or not dtype.is_floating_point or not all(ns) or not all(map(_IS_ON_HOST, tensors)):
        return None
    if set(map(_LAYOUT, tensors)) != {torch.strided}:
        return None
    if not all(map(Tensor.is_contiguous, tensors)) or any(map(Tensor.is_neg, tensors)):
        return None
    addresses = np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))
    if addresses.min() < NULL_REACHES and not all(map(is_there, tensors)):
        return None
    begins, rest = np.divmod(addresses - addresses.min(), dtype.itemsize)
    if rest.any():
        return None
    places, sizes = _picks(ns, size, start)
    picks = np.repeat(begins, sizes) + places
    span: Any = (ctypes.c_ubyte * (int(picks.max() + 1) * dtype.itemsize)).from_address(int(addresses.min()))
    values = np.frombuffer(span, dtype=f"u{dtype.itemsize}").take(picks)
    return torch.from_numpy(values.view(f"i{dtype.itemsize}")).view(dtype), sizes


@functools.lru_cache(maxsize=4)
def _picks_in_one(ns: tuple[int, ...], size: int, start: int, device: torch.device) -> tuple[Tensor, Sequence[int]]:
    """Where the samples of flat tensors that lie one after the other are, and how many elements of each."""
    n = np.array(ns, np.int64)
    places, sizes = _picks(ns, size, start)
    return torch.from_numpy(np.repeat(np.cumsum(n) - n, sizes) + places).to(device), sizes


@functools.lru_cache(maxsize=8)
def _picks(ns: tuple[int, ...], size: int, start: int) -> tuple[NDArray[np.int64], Sequence[int]]:
    """Where the samples of flat tensors of these sizes are in each, and how many elements of each."""
    n = np.array(ns, np.int64)
    strides = np.maximum(-(-n // size), 1)
    first = start % strides
    sizes = -(-(n - first) // strides)
    ends = np.cumsum(sizes)
    within = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
    return np.repeat(first, sizes) + within * np.repeat(strides, sizes), sizes.tolist()


def all_same(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether each two hold the same values; one transfer."""
    return not any(to_host([(one != other).any().float() for one, other in pairs]))


def n_changed(trios: Sequence[tuple[Tensor | float, Tensor | float | None, float]]) -> list[tuple[int, int]]:
    """How many elements were looked at and how many have changed, of each (before, now, slack): see Framework."""
    looked = [_compared(*trio) for trio in trios]
    return [(n, round(count)) for (n, _), count in zip(looked, to_host([each for _, each in looked]), strict=True)]


def _compared(before: Tensor | float, now: Tensor | float | None, slack: float) -> tuple[int, Tensor]:
    if now is None:
        return 0, torch.ones((), device="cpu")
    a, b = (t if isinstance(t, torch.Tensor) else torch.as_tensor(t, device="cpu") for t in (before, now))
    if a.shape != b.shape or a.device != b.device:
        return b.numel(), torch.full((), float(b.numel()), device="cpu")
    if not a.is_floating_point() or not b.is_floating_point():
        return b.numel(), (a != b).sum().float()
    near = (a - b).abs() <= slack * a.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return b.numel(), (~near & (a != b) & ~((a != a) & (b != b))).sum().float()
