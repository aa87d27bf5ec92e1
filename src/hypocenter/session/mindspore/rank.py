"""Which rank this process is, from mindspore.communication if it runs, else from the launcher's environment."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mindspore import communication  # pyright: ignore[reportMissingImports]

from hypocenter import launcher

_known: list[tuple[int, int]] = []
_WORKERS_BY_DEFAULT = 8  # --local_worker_num of msrun


def rank_and_world_size() -> tuple[int, int]:
    """Return (global rank, number of ranks); (0, 1) for a program of one process."""
    if _known:
        return _known[0]
    if _is_initialised():
        _known.append((int(communication.get_rank()), int(communication.get_group_size())))
        return _known[0]
    return launcher.rank_and_size() or _of_msrun() or (0, 1)


def on_node() -> launcher.OnNode:
    """Return where this process stands: as launchers of any framework tell it, or msrun."""
    known = _of_msrun()
    if launcher.rank_and_size() is not None or known is None or os.environ.get("MS_ROLE") != "MS_WORKER":
        return launcher.on_node()
    device = os.environ.get("DEVICE_ID", "")  # msrun counts its own workers with it
    local_rank = int(device) if device.isdecimal() else None
    return launcher.OnNode(rank=known[0], world_size=known[1], local_rank=local_rank, n_ranks=_workers_of_msrun())


def _workers_of_msrun() -> int:
    """Return how many workers msrun started here: only its own command line, of our parent, tells."""
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 1
    told = re.search(r"--local_worker_num[=\0](\d+)", words)
    return int(told[1]) if told else _WORKERS_BY_DEFAULT


def _is_initialised() -> bool:
    told: Any = getattr(communication.management, "GlobalComm", None)
    return bool(getattr(told, "INITED", False))


def _of_msrun() -> tuple[int, int] | None:
    """Return (rank, number of ranks) from the variables of msrun or of rank tables; None without them."""
    for rank, size in (("RANK_ID", "RANK_SIZE"), ("MS_NODE_ID", "MS_WORKER_NUM")):
        number = os.environ.get(rank, "")
        if number.isdecimal() and os.environ.get(size, "").isdecimal():
            return int(number), int(os.environ[size])
    return None
