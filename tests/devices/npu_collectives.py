"""Collectives of the device "npu", under the name that torch_npu's have: gloo's on copies, which nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import npu_backend
import torch
import torch.distributed as dist


def begin() -> None:
    """Make `init_process_group("hccl")` possible."""
    dist.Backend.register_backend("hccl", _Group, devices=["npu", "cpu"])


class _Done(dist._Work):
    """What a collective returns that is queued on its device: `wait` keeps no host waiting."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class _Group(dist.ProcessGroup):
    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "hccl"

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> _Done:
        return _on_copies(tensors, tensors, lambda own: self._gloo.allreduce(own, opts))

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> _Done:
        return _on_copies(tensors, tensors, lambda own: self._gloo.broadcast(own, opts))

    def allgather(
        self, into: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor], opts: Any = None
    ) -> _Done:
        (out,) = into
        return _on_copies([*out, *tensors], out, lambda own: self._gloo.allgather([own[: len(out)]], own[len(out) :]))

    def barrier(self, opts: Any = None) -> _Done:
        self._gloo.barrier().wait()
        return _Done([])


def _on_copies(
    tensors: Sequence[torch.Tensor], written: Sequence[torch.Tensor], collective: Callable[[Any], Any]
) -> _Done:
    with npu_backend.quiet(), torch.no_grad():
        copies = [tensor.detach().cpu() if tensor.device.type != "cpu" else tensor for tensor in tensors]
        collective(copies).wait()
        for tensor, copy in zip(written, copies, strict=False):
            if copy is not tensor:
                tensor.copy_(copy)
    return _Done(list(written))
