"""Which rank this process is, from torch.distributed if it runs, else from the launcher's environment."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from hypocenter.launcher import rank_and_size
from hypocenter.tap.weakly import Ref

_CAN_BE = torch.distributed.is_available()  # torch may be built without it
_world: Any = torch.distributed.distributed_c10d._world if _CAN_BE else None
_known: dict[str, tuple[weakref.ref[Any], tuple[int, int]]] = {}  # of the default group that was asked last


def rank_and_world_size() -> tuple[int, int]:
    """Return (global rank, number of ranks); (0, 1) for a program of one process."""
    return rank_of_group() or launched_rank()


def rank_of_group() -> tuple[int, int] | None:
    """Return (rank, number of ranks) in the default process group; None without such a group."""
    world = _world.default_pg if _CAN_BE else None  # what `group.WORLD` gives, in one call
    if world is None:
        return None
    known = _known.get("world")
    if known is None or known[0]() is not world:  # asked many times a step, and torch takes 5 µs to answer
        found = torch.distributed.get_rank(), torch.distributed.get_world_size()
        known = _known["world"] = Ref(world), found
    return known[1]


def launched_rank() -> tuple[int, int]:
    """Return (rank, number of ranks) as the launcher's environment has it, which takes 15 µs to read."""
    return rank_and_size() or (0, 1)
