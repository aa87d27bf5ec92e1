"""Some rows of a batch in place of all, in what is done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SHAPED = frozenset({"view", "reshape", "expand", "arange", "eye", "zeros", "ones", "new_zeros", "new_ones"})
"""Functions that are told sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Which rows are kept of each tensor whose first dimension is the batch.

    Loss code often lays the batch flat: labels as (batch * tokens), sizes as numbers. Where a replay fails, it is done
    again with `is_flat`: multiples of the batch count as it, batch first, also among sizes in loss code. What numbers
    the rows (the labels of a contrastive loss, an index of rows) numbers those that are left.
    """

    n: int  # in the whole batch
    kept: Tensor
    is_flat: bool = False

    def of(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or the kept rows of it if its first dimension is the batch."""
        if not tensor.dim() or not self._times(tensor.shape[0]):
            return tensor
        times, kept = self._times(tensor.shape[0]), self.kept.to(tensor.device)
        if tensor.dtype == torch.int64 and tensor.dim() == 1 and times == 1 and _numbers_rows(tensor):
            return tensor[: len(kept)]
        if times > 1:
            kept = (kept.unsqueeze(1) * times + torch.arange(times, device=kept.device)).flatten()
        chosen = tensor.detach().index_select(0, kept)
        return chosen.requires_grad_() if tensor.requires_grad else chosen

    def sizes(self, function: Callable[..., Any], args: Any) -> Any:
        """Return the arguments of loss code, with sizes of the batch changed to sizes of the kept rows."""
        is_shaped = self.is_flat and getattr(function, "__name__", "") in _SHAPED
        return tuple(map(self._sized, args)) if is_shaped else args

    def _sized(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(self._sized, value))
        return self._times(value) * len(self.kept) if type(value) is int and self._times(value) else value

    def _times(self, size: int) -> int:
        """Return how many times the batch a size is; 0 if it has nothing to do with it."""
        if size == self.n:
            return 1
        return size // self.n if self.is_flat and size > 0 and size % self.n == 0 else 0


def _numbers_rows(tensor: Tensor) -> bool:
    return bool((tensor == torch.arange(len(tensor), device=tensor.device)).all())
