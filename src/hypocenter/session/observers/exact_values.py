"""Digests and small sketches of tensors as they are now, fetched together later."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter.summary.reducers.torch_sketch import small_sketches
from hypocenter.tap.digest import digests, to_host

Fact = tuple[int | None, tuple[float, ...]]  # digest, sketch; None and () where there are no values


class Exact:
    """`add` launches kernels and keeps no tensor of the program's; `drain` waits once per device."""

    def __init__(self) -> None:
        self._digests: list[torch.Tensor | None] = []
        self._sketches: list[torch.Tensor | None] = []

    def add(self, tensors: Sequence[torch.Tensor]) -> range:
        """The indices of their facts in `drain()`."""
        first = len(self._digests)
        self._digests += digests(tensors)
        numbers = [i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex()]
        sketches: list[torch.Tensor | None] = [None] * len(tensors)
        for index, sketch in zip(numbers, small_sketches([tensors[i] for i in numbers]), strict=True):
            sketches[index] = sketch
        self._sketches += sketches
        return range(first, len(self._digests))

    def drain(self) -> list[Fact]:
        """Facts of all that was added, and start anew."""
        found, sketches = self._digests, self._sketches
        self._digests, self._sketches = [], []
        return list(zip(to_host(found), _vectors_to_host(sketches), strict=True))


def _vectors_to_host(vectors: list[torch.Tensor | None]) -> list[tuple[float, ...]]:
    out: list[tuple[float, ...]] = [()] * len(vectors)
    by_device: dict[torch.device, list[int]] = {}
    for index, vector in enumerate(vectors):
        if vector is not None:
            by_device.setdefault(vector.device, []).append(index)
    for indices in by_device.values():
        rows: list[list[float]] = torch.stack([v for i in indices if (v := vectors[i]) is not None]).tolist()
        for index, row in zip(indices, rows, strict=True):
            out[index] = tuple(row)
    return out
