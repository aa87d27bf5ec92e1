"""Products with signs in full precision, whatever the user has set for products, and in blocks that suit the device.

TF32 keeps 11 bits of a factor, bfloat16 8. The settings are global, and other threads multiply too: they are left as
they are. A float32 number is the sum of three bfloat16 ones without a rest, and a sign times one of these is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ON_HOST = 1 << 18  # elements converted to float32 at a time: 1 MiB, which stays in the cache
_ON_DEVICE = 32 * _ON_HOST  # 32 MiB: there a kernel's launch costs more than its work on less
_FULL = ("none", "ieee")


def block_elements(device: torch.device) -> int:
    """How many elements are converted at a time."""
    return _ON_HOST if device.type == "cpu" else _ON_DEVICE


def times_signs(values: Tensor, signs: Tensor) -> Tensor:
    """`values @ signs`; signs are 1 and -1 in the format of the values."""
    if values.dtype is not torch.float32 or not _cuts_factors(values.device.type):
        return values @ signs
    high = values.to(torch.bfloat16).to(torch.float32)
    rest = values - high
    middle = rest.to(torch.bfloat16).to(torch.float32)
    return (high @ signs + middle @ signs) + (rest - middle) @ signs


def _cuts_factors(device_type: str) -> bool:
    """Whether products of float32 may be made of shorter factors on such a device."""
    of_device: Any = getattr(torch, device_type, None)
    if bool(getattr(getattr(of_device, "matmul", None), "allow_hf32", False)):  # torch_npu's
        return True
    get: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # torch 2.9
    if get is not None:
        backend = "mkldnn" if device_type == "cpu" else "cuda"
        return any(get(*of) not in _FULL for of in (("generic", "all"), (backend, "all"), (backend, "matmul")))
    return torch.get_float32_matmul_precision() != "highest"
