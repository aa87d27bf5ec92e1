"""Strided samples of tensors, and numbers that are read from their devices together, later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hypocenter.session.framework import SAMPLE, Then
from hypocenter.tap.gradients import local, to_host

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


def copies(values: Sequence[Tensor | float]) -> list[Tensor | float]:
    """Copies of samples, all of one format on one device in one operation; what is a number stays one."""
    found = list(values)
    for where, samples in by_kind(values).values():
        for index, copied in zip(where, torch.cat(samples).split([each.numel() for each in samples]), strict=True):
            found[index] = copied
    return found


def n_changed(trios: Sequence[tuple[Tensor | float, Tensor | float | None, float]]) -> list[tuple[int, int]]:
    """How many elements were looked at and how many have changed, of each (before, now, slack): see Framework."""
    if _all_equal([before for before, _, _ in trios], [now for _, now, _ in trios]):
        return [(before.numel() if isinstance(before, Tensor) else 1, 0) for before, _, _ in trios]
    looked = [_compared(*trio) for trio in trios]
    return [(n, round(count)) for (n, _), count in zip(looked, to_host([each for _, each in looked]), strict=True)]


def by_kind(values: Sequence[Any]) -> dict[tuple[Any, Any], tuple[list[int], list[Tensor]]]:
    """Samples of one device and format: their places, and they themselves."""
    found: dict[tuple[Any, Any], tuple[list[int], list[Tensor]]] = {}
    for index, value in enumerate(values):
        if isinstance(value, Tensor):
            where, samples = found.setdefault((value.device, value.dtype), ([], []))
            where.append(index)
            samples.append(value)
    return found


def _all_equal(before: Sequence[Tensor | float], now: Sequence[Tensor | float | None]) -> bool:
    for a, b in zip(before, now, strict=True):
        if not isinstance(a, Tensor):
            if isinstance(b, Tensor) or a != b:
                return False
        elif not isinstance(b, Tensor):
            return False
    after, differ = by_kind(now), list[Tensor]()
    for kind, (where, samples) in by_kind(before).items():
        if kind not in after or after[kind][0] != where:
            return False
        if [each.numel() for each in after[kind][1]] != [each.numel() for each in samples]:
            return False
        differ.append((torch.cat(samples) != torch.cat(after[kind][1])).any().float())
    return not any(to_host(differ)) if differ else True


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
