"""What a remedy costs: its share of the parameters (a rough guess without a replay), and bytes kept for backward."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor, nn


def parameter_share(roots: Iterable[nn.Module], modules: Iterable[nn.Module]) -> float:
    """Elements of the modules' parameters / of all the models' parameters, 0 to 1; shared ones count once.

    Where matrix products dominate, which use each weight once per token, this is the share of the arithmetic too:
    time grows by about share x (float32's time per product / low precision's - 1).
    """
    whole = {id(p): p.numel() for root in roots for p in root.parameters()}
    part = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(part.values()) / max(1, sum(whole.values()))


class KeptForBackward:
    """Context manager: counts the bytes that autograd keeps for backward of what is computed in the block.

    Each storage counts once; parameters and what a forward was given count like everything else. What a compiled
    region or a custom C++ function keeps for itself is not seen.
    """

    def __init__(self) -> None:
        self.n_bytes = 0
        self._seen: dict[int, int] = {}  # storage address -> bytes; a freed one may be used again, so the larger counts
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> KeptForBackward:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)
        self.n_bytes = sum(self._seen.values())

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._seen[storage.data_ptr()] = max(self._seen.get(storage.data_ptr(), 0), storage.nbytes())
        return tensor


def _unpack(tensor: Tensor) -> Tensor:
    return tensor
