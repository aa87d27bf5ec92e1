"""The device that a model trains on: its name and its serial number, so that one bad card can be found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where a rank computes: "cuda:3", "NVIDIA H200", "GPU-5c8f...". A CPU has no name and no serial here."""

    device: str = ""
    name: str = ""
    serial: str = ""


def device_of(roots: Sequence[torch.nn.Module]) -> Device:
    """The device of the first parameter or buffer of the roots that is not on the CPU; the CPU when all are there."""
    found = ""
    for root in roots:
        tensors = (*root.parameters(), *torch.nn.Module.buffers(root))  # Megatron's DDP keeps a list in `buffers`
        for tensor in tensors:
            if tensor.device.type not in ("cpu", "meta"):
                return _described(tensor.device)
            found = found or ("cpu" if tensor.device.type == "cpu" else "")
    return Device(device=found)


def _described(device: torch.device) -> Device:
    module: Any = getattr(torch, device.type, None)
    try:
        index = device.index  # of a tensor that exists, never None
        properties = module.get_device_properties(index)
        serial = getattr(properties, "uuid", "")
        return Device(
            device=f"{device.type}:{index}", name=str(getattr(properties, "name", "")),
            serial=f"GPU-{serial}" if device.type == "cuda" and serial else str(serial),
        )  # fmt: skip
    except Exception:  # a backend without these questions
        return Device(device=str(device))
