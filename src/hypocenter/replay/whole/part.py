"""What is gathered at once: one tensor that lies in pieces on the ranks of a group, and what stands for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True, kw_only=True, eq=False)
class StandIn:
    """A parameter of a replay. It has no values until its part is gathered.

    Attributes:
        holders: modules and the names under which they hold it.
        offset: of its first element in its part.
        original: the parameter that it stands for; None where that is a piece of another tensor.
    """

    tensor: torch.nn.Parameter
    holders: list[tuple[torch.nn.Module, str]]
    offset: int = 0
    original: torch.Tensor | None = None

    @property
    def key(self) -> int:
        """The key of its storage."""
        return self.tensor.untyped_storage()._cdata

    @property
    def n_bytes(self) -> int:
        """The bytes it takes when it has values."""
        return _span(self.tensor) * self.tensor.element_size()

    def fill(self, flat: torch.Tensor) -> None:
        """Give it its values, out of those of its part. Its version stays."""
        storage = self.tensor.untyped_storage()
        storage.resize_(self.n_bytes)
        values = torch.empty(0, dtype=self.tensor.dtype, device=self.tensor.device)
        values.set_(storage, 0, self.tensor.shape, self.tensor.stride())  # type: ignore[call-overload]
        values.copy_(flat.as_strided(values.shape, values.stride(), flat.storage_offset() + self.offset))

    def empty(self) -> None:
        """Take its values away."""
        self.tensor.untyped_storage().resize_(0)


@dataclass(slots=True, kw_only=True, eq=False)
class Part:
    """One tensor that is held in pieces.

    Attributes:
        shard: this rank's piece, flat, in the format that the model computes in, on any device.
        group: the ranks that hold the others, in order; None: this rank has all of it.
        covered: the parameters of training that it stands for, whole or in pieces.
    """

    shard: Callable[[], torch.Tensor]
    group: Any
    stand_ins: list[StandIn]
    covered: list[torch.Tensor]

    @property
    def n_bytes(self) -> int:
        """The bytes it takes when it is gathered."""
        return sum(each.n_bytes for each in self.stand_ins)


def stand_in(
    shape: Any, dtype: torch.dtype, device: torch.device, *, requires_grad: bool, stride: Any = None
) -> torch.nn.Parameter:
    """Return a parameter without values."""
    empty = (
        torch.empty(shape, dtype=dtype, device=device)
        if stride is None
        else torch.empty_strided(shape, stride, dtype=dtype, device=device)
    )
    empty.untyped_storage().resize_(0)
    return torch.nn.Parameter(empty, requires_grad=requires_grad)


def _span(tensor: torch.Tensor) -> int:
    """Return the number of elements from its first to its last in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
