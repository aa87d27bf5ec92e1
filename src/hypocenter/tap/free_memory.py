"""Memory that a device could still give to this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_UNKNOWN = 1 << 30  # bytes, where a device or a system does not tell


def free_bytes(device: torch.device) -> int:
    """Bytes; of the host's memory the share of one of its ranks."""
    if device.type == "cpu":
        return _of_host() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))
    backend: Any = getattr(torch, device.type, None)
    try:
        cached = backend.memory_reserved(device) - backend.memory_allocated(device)
        return int(backend.mem_get_info(device)[0]) + int(cached)
    except Exception:  # of other makers' devices some do not tell
        return _UNKNOWN


def peak_bytes(device: torch.device) -> int:
    """By how much this process once held more on the device than it holds now; 0 where that is not known."""
    backend: Any = getattr(torch, device.type, None)
    try:
        return int(backend.max_memory_allocated(device)) - int(backend.memory_allocated(device))
    except Exception:  # the host does not count
        return 0


def _of_host() -> int:
    """Linux tells what could be had, caches given up; other systems at most what is unused."""
    try:
        told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        return int(told["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return _UNKNOWN
