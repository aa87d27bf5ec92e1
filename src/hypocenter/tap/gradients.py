"""Norms of many tensors in a few kernels and one transfer: what sentinel reads of all gradients and parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def local(tensor: torch.Tensor) -> torch.Tensor | None:
    """The dense values that are on this rank: the local shard of a DTensor, the values of a sparse tensor.

    None for what has no values here (meta tensors, empty ones, unknown layouts).
    """
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # type: ignore[operator]
    if hasattr(tensor, "wait") and type(tensor).__name__ == "AsyncCollectiveTensor":
        tensor = tensor.wait()  # type: ignore[operator]
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout != torch.strided:
        return None
    if tensor.device.type == "meta" or tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    return tensor.detach()


def norms(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """L2 norms in float32 (0-d, on their device), one per tensor; nothing is transferred.

    A norm may overflow to inf although every element is finite (above 1.8e19 each, sqrt of float32's largest): a
    non-finite norm is a reason to look, not a verdict.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(index)
    out: list[torch.Tensor | None] = [None] * len(tensors)
    for (_, dtype), indices in groups.items():
        group = [tensors[i] for i in indices]
        if dtype in (torch.float32, torch.bfloat16, torch.float16):
            results = torch._foreach_norm(group, 2, dtype=torch.float32)
        else:
            results = [torch.linalg.vector_norm(t.float() if dtype.itemsize == 1 else t).float() for t in group]
        for index, result in zip(indices, results, strict=True):
            out[index] = result
    return [norm for norm in out if norm is not None]


def to_host(scalars: Sequence[torch.Tensor]) -> list[float]:
    """0-d tensors of any device as floats: one transfer per device."""
    by_device: dict[torch.device, list[int]] = {}
    for index, scalar in enumerate(scalars):
        by_device.setdefault(scalar.device, []).append(index)
    out = [0.0] * len(scalars)
    for indices in by_device.values():
        for index, value in zip(
            indices, torch.stack([scalars[i].reshape(()).float() for i in indices]).tolist(), strict=True
        ):
            out[index] = value
    return out


def to_host_with(
    scalars: Sequence[torch.Tensor], vectors: Sequence[torch.Tensor]
) -> tuple[list[float], list[list[float]]]:
    """0-d tensors and float32 vectors, of any device: still one transfer per device."""
    if not vectors:
        return to_host(scalars), []
    by_device: dict[torch.device, tuple[list[int], list[int]]] = {}
    for index, scalar in enumerate(scalars):
        by_device.setdefault(scalar.device, ([], []))[0].append(index)
    for index, vector in enumerate(vectors):
        by_device.setdefault(vector.device, ([], []))[1].append(index)
    out, told = [0.0] * len(scalars), [list[float]() for _ in vectors]
    for ones, many in by_device.values():
        stacked = [torch.stack([scalars[i].reshape(()).float() for i in ones])] if ones else []
        host: list[float] = torch.cat([*stacked, *(vectors[i] for i in many)]).tolist()
        for index, value in zip(ones, host, strict=False):
            out[index] = value
        start = len(ones)
        for index in many:
            told[index] = host[start : (start := start + vectors[index].numel())]
    return out, told


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is finite. Synchronises: only for a tensor that is already under suspicion."""
    return bool(torch.isfinite(tensor).all())
