"""A tensor from one rank to another over a gloo group: first what it is, then its bytes."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch

_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
"""By number, as they go over the wire: append only."""

_MAX_DIMS = 16
_HEADER, _BODY = 7301, 7302  # tags: nobody else sends on this group


def send(group: Any, tensor: torch.Tensor, to: int) -> list[Any]:
    """Start to send a tensor to a rank; return the works to wait for.

    Raises:
        ValueError: more than 16 dimensions, or a dtype that cannot be sent.
    """
    if tensor.dim() > _MAX_DIMS or tensor.dtype not in _DTYPES:
        raise ValueError(f"a {tensor.dtype} tensor of {tensor.dim()} dimensions cannot be sent")
    values = tensor.detach().to("cpu", copy=True).contiguous()
    shape = list(values.shape) + [0] * (_MAX_DIMS - values.dim())
    header = torch.tensor([_DTYPES.index(values.dtype), values.dim(), *shape], dtype=torch.int64, device="cpu")
    works = [group.send([header], to, _HEADER)]
    if values.numel():
        works.append(group.send([values.reshape(-1).view(torch.uint8)], to, _BODY))
    return works


def receive(group: Any, frm: int, deadline: float) -> torch.Tensor:
    """Wait for a tensor that another rank sends, and return it.

    Args:
        deadline: of time.monotonic().

    Raises:
        RuntimeError: it did not come, or the rank is gone.
    """
    header = torch.empty(2 + _MAX_DIMS, dtype=torch.int64, device="cpu")
    _finish(group.recv([header], frm, _HEADER), deadline)
    kind, n_dims, *shape = header.tolist()
    values = torch.empty(shape[:n_dims], dtype=_DTYPES[kind], device="cpu")
    if values.numel():
        _finish(group.recv([values.reshape(-1).view(torch.uint8)], frm, _BODY), deadline)
    return values


def _finish(work: Any, deadline: float) -> None:
    if not work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic()))):
        raise RuntimeError("it did not come in time")
