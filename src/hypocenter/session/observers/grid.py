"""Low-precision formats as grids of numbers: which formats are low, and how far apart their numbers are."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from hypocenter.formats import FORMATS, Format
from hypocenter.session.framework import spacing
from hypocenter.summary.reducers.torch_float64 import has_float64

GRIDS: dict[torch.dtype, Format] = {
    getattr(torch, name): FORMATS[name] for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
}


def is_low(value: object) -> bool:
    """Return whether this is a tensor in one of these low formats."""
    return isinstance(value, Tensor) and value.dtype in GRIDS


@functools.cache
def name_of(dtype: torch.dtype) -> str:
    """Return the format's name without "torch.", like "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the format to compute in: float64 where the device has it, else float32, which is wide enough too."""
    return torch.float64 if has_float64(device.type) else torch.float32


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the distance to the next larger magnitude of the format, for wide values that are numbers of it."""
    return spacing(torch, values, GRIDS[dtype])


def rounded(value: float, dtype: torch.dtype) -> float:
    """Return the number of the format that this value becomes."""
    return float(torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype).to(torch.float64))
