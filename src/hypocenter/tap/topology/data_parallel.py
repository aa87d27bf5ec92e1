"""Plain data parallelism: the process group of a DDP or FSDP1 wrapper is dp. Without a wrapper nothing is claimed."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from hypocenter.tap.topology.layout import Layout, modules_of, ranks_of

_WRAPPERS = frozenset({("torch", "DistributedDataParallel"), ("torch", "FullyShardedDataParallel")})


_noted: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def note_wrapper(wrapper: torch.nn.Module) -> None:
    """Note a new wrapper. It counts as long as it lives, also when training goes past it to its module."""
    _noted.add(wrapper)


def layout(roots: Sequence[torch.nn.Module], rank: int, world_size: int) -> Layout | None:
    """Return the ranks of dp, when a wrapper is seen; else None."""
    for module in [*modules_of(roots), *_noted]:
        if any((kind.__module__.partition(".")[0], kind.__name__) in _WRAPPERS for kind in type(module).__mro__):
            ranks = _ranks(module, world_size)
            if rank in ranks:
                return Layout(source="data parallel", rank=rank, groups={"dp": ranks})
    return None


def _ranks(wrapper: Any, world_size: int) -> tuple[int, ...]:
    inner = ranks_of(wrapper.process_group)
    outer = getattr(wrapper, "_inter_node_pg", None)  # FSDP1's hybrid sharding: replicas of the sharded model
    if outer is None:
        return inner
    n_all = len(inner) * len(ranks_of(outer))
    return tuple(range(world_size)) if n_all == world_size else inner
