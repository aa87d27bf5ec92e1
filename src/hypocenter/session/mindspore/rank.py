"""Which rank this process is, from mindspore.communication if it runs, else from the launcher's environment."""

from __future__ import annotations

import os
from typing import Any

from mindspore import communication  # pyright: ignore[reportMissingImports]

from hypocenter.launcher import rank_and_size

_known: list[tuple[int, int]] = []


def rank_and_world_size() -> tuple[int, int]:
    """Return (global rank, number of ranks); (0, 1) for a program of one process."""
    if _known:
        return _known[0]
    if _is_initialised():
        _known.append((int(communication.get_rank()), int(communication.get_group_size())))
        return _known[0]
    return rank_and_size() or _of_msrun() or (0, 1)


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
