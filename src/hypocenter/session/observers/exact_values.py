"""Digests and small sketches of tensors as they are now, fetched together later."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter.summary.reducers.torch_small_sketch import small_sketches
from hypocenter.tap.digest import digests, to_host_with

Fact = tuple[int | None, tuple[float, ...]]  # digest, sketch; None and () where there are no values


class Exact:
    """Digests and small sketches; `add` launches kernels and keeps no tensor, `drain` waits once per device."""

    def __init__(self) -> None:
        self._digests: list[torch.Tensor | None] = []
        self._sketches: list[torch.Tensor | None] = []

    def add(self, tensors: Sequence[torch.Tensor]) -> range:
        """Add tensors; return the indices of their facts in `drain()`."""
        first = len(self._digests)
        self._digests += digests(tensors)
        numbers = [i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex()]
        sketches: list[torch.Tensor | None] = [None] * len(tensors)
        for index, sketch in zip(numbers, small_sketches([tensors[i] for i in numbers]), strict=True):
            sketches[index] = sketch
        self._sketches += sketches
        return range(first, len(self._digests))

    def drain(self) -> list[Fact]:
        """Return the facts of all that was added, and start anew."""
        found, sketches = self._digests, self._sketches
        self._digests, self._sketches = [], []
        numbers, vectors = to_host_with(found, sketches)
        return [(digest, sketch or ()) for digest, sketch in zip(numbers, vectors, strict=True)]
