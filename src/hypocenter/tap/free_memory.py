"""Memory that a device could still give to this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hypocenter.tap.free_host_memory import SPARE, UNKNOWN, free_on_host


def free_bytes(device: torch.device) -> int:
    """Return how many bytes are free on a device; of the host the share of one of its ranks."""
    if device.type == "cpu":
        return free_on_host()
    backend: Any = getattr(torch, device.type, None)
    try:
        cached = backend.memory_reserved(device) - backend.memory_allocated(device)
        return int(backend.mem_get_info(device)[0]) + int(cached)
    except Exception:  # of other makers' devices some do not tell
        return UNKNOWN


def peak_bytes(device: torch.device) -> int:
    """Return how many bytes more than now this process once held on the device; 0 where that is not known."""
    backend: Any = getattr(torch, device.type, None)
    try:
        return int(backend.max_memory_allocated(device)) - int(backend.memory_allocated(device))
    except Exception:  # the host does not count
        return 0


def why_no_room(parameters: Sequence[torch.Tensor]) -> str:
    """Say why gradients of all these, and their sums in float64, do not fit in a replay; "" if they do."""
    by_device: dict[torch.device, int] = {}
    for p in parameters:
        device = p.device
        by_device[device] = by_device.get(device, 0) + p.numel() * (p.element_size() + 8)
    for device, n_bytes in by_device.items():
        needed = n_bytes + peak_bytes(device)
        if SPARE * needed > (free := free_bytes(device)):
            return f"it takes about {needed >> 20} MiB on {device}, of which {free >> 20} MiB are free"
    return ""
