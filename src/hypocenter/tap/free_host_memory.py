"""Memory of the host that this process could still have."""

from __future__ import annotations

import os
from pathlib import Path

UNKNOWN = 1 << 30  # bytes, where a device or a system does not tell
SPARE = 1.25  # times what a replay needs must be free, by our own count


def free_on_host() -> int:
    """Return how many bytes of the host are free for this process: its share among the host's ranks."""
    return _free() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))


def _free() -> int:
    """Return the free bytes: on Linux what can be had with caches given up, elsewhere what is unused at most."""
    try:
        told = Path("/proc/meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2]
        return int(told.split(maxsplit=1)[0]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return UNKNOWN
