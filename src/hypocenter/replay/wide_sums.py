"""Sums of gradients over micro-batches in float64, as many as there is memory for."""

from __future__ import annotations

import torch

from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.free_memory import free_bytes

MOST_BYTES = 1 << 30
SHARE = 0.25  # of the memory that is free on the device


class WideSums:
    """Adds up gradients by name.

    Attributes:
        held: the sums.
        left_out: names that there was no room for.
    """

    def __init__(self) -> None:
        self.held: dict[str, torch.Tensor] = {}
        self.left_out: set[str] = set()
        self._n_bytes = 0

    def add(self, name: str, grad: torch.Tensor) -> None:
        """One more gradient."""
        if name in self.left_out:
            return
        total = self.held.get(name)
        if total is not None:
            total += in_float64(grad)
            return
        if self._n_bytes + 8 * grad.numel() > min(MOST_BYTES, self._n_bytes + SHARE * free_bytes(grad.device)):
            self.left_out.add(name)
            return
        self._n_bytes += 8 * grad.numel()
        self.held[name] = in_float64(grad).clone()
