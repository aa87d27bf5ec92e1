"""What a tensor held at one moment, to be known again at another: without a copy, and without looking at a value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hypocenter.tap.tape import storage_of, version_of

Left = tuple[StorageWeakRef, int]
"""What a tensor lies in, whose number is not given anew as long as it is held here, and its version."""


def left_in(tensors: Sequence[torch.Tensor]) -> list[Left]:
    """Note where these lie, and which version of it they are."""
    return [(StorageWeakRef(tensor.untyped_storage()), version_of(tensor)) for tensor in tensors]


def is_left(tensor: torch.Tensor, left: Left) -> bool:
    """Return whether a tensor lies in what was noted, and nothing was written to it since."""
    return storage_of(tensor) == left[0].cdata and version_of(tensor) == left[1]
