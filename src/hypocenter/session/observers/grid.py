"""Low-precision formats as grids of numbers: which formats are low, and how far apart their numbers are."""

from __future__ import annotations

import torch
from torch import Tensor

from hypocenter.summary.reducers.torch_float64 import has_float64

GRIDS: dict[torch.dtype, tuple[int, int]] = {
    torch.float16: (10, -14),  # IEEE 754
    torch.bfloat16: (7, -126),
    torch.float8_e4m3fn: (3, -6),  # OCP 8-bit floating point
    torch.float8_e5m2: (2, -14),
}
"""dtype -> (fraction bits, exponent of the smallest normal number)."""


def is_low(value: object) -> bool:
    """Whether this is a tensor in one of these formats."""
    return isinstance(value, Tensor) and value.dtype in GRIDS


def name_of(dtype: torch.dtype) -> str:
    """bfloat16, without "torch."."""
    return str(dtype).removeprefix("torch.")


def wide_dtype(device: torch.device) -> torch.dtype:
    """What to compute in: float64 where a device has it; float32 carries bfloat16 and float16 decisions as well."""
    return torch.float64 if has_float64(device.type) else torch.float32


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance to the next larger magnitude of the format: 2^(floor(log2|w|) - fraction bits), subnormals included.

    Args:
        values: in a wider format, holding numbers of the grid.
    """
    fraction_bits, smallest = GRIDS[dtype]
    exponent = torch.frexp(values).exponent - 1  # frexp's fraction lies in [0.5, 1)
    exponent = torch.where(values == 0, torch.full_like(exponent, smallest), exponent).clamp(min=smallest)
    return torch.ldexp(torch.ones_like(values), exponent - fraction_bits)


def rounded(value: float, dtype: torch.dtype) -> float:
    """The number of the format that this becomes."""
    return float(torch.tensor(value, dtype=torch.float64).to(dtype).to(torch.float64))
