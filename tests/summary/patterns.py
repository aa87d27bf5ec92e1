"""Numbers of every format for the tests of torch's reducers."""

from __future__ import annotations

import numpy as np
import torch

FLOATS = {
    torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8, torch.float8_e5m2fnuz: torch.uint8,
}  # fmt: skip
INTS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


def any_bits(dtype: torch.dtype, seed: int, n: int) -> torch.Tensor:
    """Any bit pattern of the format: NaN, infinities, zeros, subnormals; float64 within what squares to finite."""
    generator = torch.Generator().manual_seed(seed)
    info = torch.iinfo(FLOATS[dtype])
    patterns = torch.tensor([0, info.max, info.min, 1, info.min + 1 if info.min else 129], dtype=FLOATS[dtype])
    bits = torch.randint(info.min, info.max, (n,), dtype=FLOATS[dtype], generator=generator)
    special = torch.rand(n, generator=generator) < 0.3
    bits[special] = patterns[torch.randint(0, 5, (int(special.sum()),), generator=generator)]
    x = bits.view(dtype)
    return torch.where(x.abs() > 1e150, torch.inf, x) if dtype is torch.float64 else x


def to_float64(x: torch.Tensor) -> np.ndarray:
    return x.to(torch.float64).numpy()
