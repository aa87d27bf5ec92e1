"""Strided samples of tensors, and numbers that are read from their devices together, later."""

from __future__ import annotations

import torch
from torch import Tensor

from hypocenter.session.framework import SAMPLE, Then
from hypocenter.tap.gradients import local

COPIED_AT_MOST = 1 << 20  # elements of a tensor that is not contiguous: a sample of it costs a copy of all


def sample(tensor: Tensor, size: int = SAMPLE) -> Tensor | None:
    """At most `size` elements at an equal stride, the same for every tensor of this shape; a view where possible.

    None for what has no values on this rank, and for large tensors whose elements do not lie in order.
    """
    values = local(tensor)
    if values is None or (not values.is_contiguous() and values.numel() > COPIED_AT_MOST):
        return None
    stride = -(-values.numel() // size)
    return values.reshape(-1)[::stride]


class Deferred:
    """Numbers on their way to the host: on the CPU at once, from a device at the next step, all in one transfer."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Then]] = []

    def add(self, numbers: Tensor, then: Then) -> None:
        """Call `then` with these numbers (1-d) as soon as reading them makes nobody wait."""
        self._waiting.append((numbers, then))
        if numbers.device.type == "cpu":
            self.read()

    def read(self) -> None:
        """Transfer and hand out what is waiting."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        by_device: dict[torch.device, list[tuple[Tensor, Then]]] = {}
        for numbers, then in waiting:
            by_device.setdefault(numbers.device, []).append((numbers, then))
        for each in by_device.values():
            host: list[float] = torch.cat([numbers.to(each[0][0].dtype) for numbers, _ in each]).tolist()
            for numbers, then in each:
                then(host[: numbers.numel()])
                host = host[numbers.numel() :]
