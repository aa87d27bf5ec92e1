"""What an operator costs when it is done again, and whether that may be spent: told before it is done."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from hypocenter.replay.attention import Attention
from hypocenter.replay.attention_backward import AttentionBackward
from hypocenter.tap.dispatch import declared
from hypocenter.tap.free_memory import free_bytes

PER_ELEMENT = 16.0  # FLOPs that an element of an ordinary operator is worth: an exponential takes about as long
PER_CUBE = 30.0  # FLOPs per n³ of a factorisation, the dearest of them (Golub and Van Loan, Matrix Computations, 8.6)
SHARE_OF_MEMORY = 0.25  # of what is free: the program needs the rest to go on
_FACTORISATIONS = ("linalg", "cholesky", "svd", "inverse", "lu_", "qr", "eig", "lstsq", "det")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What one operator costs."""

    flops: float
    bytes: float  # that are held at the same time

    def __add__(self, other: Effort) -> Effort:
        return Effort(flops=self.flops + other.flops, bytes=self.bytes + other.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What may be spent on a device."""

    seconds: float
    device: torch.device
    dtype: torch.dtype

    @property
    def flops(self) -> float:
        """The FLOPs that the device does in the time."""
        return self.seconds * pace(self.device.type, self.dtype)

    @property
    def bytes(self) -> float:
        """The bytes that may be held: a share of the free memory."""
        return SHARE_OF_MEMORY * free_bytes(self.device)

    def refuses(self, effort: Effort) -> str:
        """Return why this much may not be done; "" if it may."""
        if effort.bytes > self.bytes:
            return f"{_large(effort.bytes)} bytes, more than a quarter of the free memory"
        if effort.flops > self.flops:
            return f"{_large(effort.flops)} FLOPs, more than {self.seconds:.3g} s allow"
        return ""


def effort(func: Any, args: Any, kwargs: Any, outputs: Any, width: int = 8) -> Effort:
    """Estimate what the operator costs.

    Args:
        outputs: its results.
        width: bytes of an element in the format in which it is done again.
    """
    read, made = _tensors((args, kwargs)), _tensors(outputs)
    n = sum(t.numel() for t in (*read, *made))
    name = func.__name__.partition(".")[0]
    flops, held = PER_ELEMENT * n, float(n)
    formula = flop_registry.get(getattr(func, "overloadpacket", func))
    attention = Attention.of(func, args, kwargs) or AttentionBackward.of(func, args, kwargs)
    if attention is not None:
        flops = attention.flops
    elif formula is not None:
        out = outputs[0] if isinstance(outputs, (tuple, list)) and len(outputs) == 1 else outputs
        flops = max(flops, float(formula(*args, **kwargs, out_val=out)))
    elif name in ("linear", "mkldnn_linear"):
        flops = max(flops, 2.0 * made[0].numel() * read[0].shape[-1])
    elif any(word in name for word in _FACTORISATIONS):
        flops = max(flops, PER_CUBE * max((t.numel() * min(t.shape[-2:]) for t in read if t.dim() > 1), default=0))
    weight = dict(zip((a.name for a in declared(func)), args, strict=False)).get("weight")
    if "conv" in name and isinstance(weight, torch.Tensor):  # the CPU unfolds what each place of the kernel sees
        held += max(t.numel() for t in (*read, *made) if t is not weight) * math.prod(weight.shape[2:])
    return Effort(flops=flops, bytes=width * held)


@functools.cache
def pace(device: str, dtype: torch.dtype) -> float:
    """Measure the FLOPs per second of a matrix product on this device in this format, in a few milliseconds."""
    n = 128 if device == "cpu" else 1024  # a small product on a device measures the launch
    a = torch.ones(n, n, dtype=dtype, device=device)
    best = math.inf
    for _ in range(2):  # the first makes handles and caches
        began = time.perf_counter()
        float((a @ a)[0, 0])
        best = min(best, time.perf_counter() - began)
    return 2.0 * n**3 / max(best, 1e-9)


def _large(number: float) -> str:
    return f"{number:.1e}".replace("e+0", "e").replace("e+", "e")


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in _tensors(item)]
    return [t for item in value for t in _tensors(item)] if isinstance(value, (list, tuple)) else []
