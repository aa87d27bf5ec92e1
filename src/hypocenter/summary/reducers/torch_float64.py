"""float64 where a device has it. torch_npu makes float32 of a cast to float64 and says so once; MPS refuses."""

from __future__ import annotations

import functools

import torch


@functools.cache
def has_float64(device_type: str) -> bool:
    """Return whether a cast on such a device gives float64, by trying it once; CPU and CUDA have it."""
    if device_type in ("cpu", "cuda", "meta"):
        return True
    try:
        return torch.ones(1, device=device_type).double().dtype == torch.float64
    except (RuntimeError, TypeError):
        return False


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return a float64 copy: on its own device or, where that has none, on the CPU."""
    return (tensor if has_float64(tensor.device.type) else tensor.cpu()).double()
