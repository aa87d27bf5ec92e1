"""torch.distributed.pipelining without a DeviceMesh: the process group that the stages pass activations over is pp."""

from __future__ import annotations

import weakref
from typing import Any

from hypocenter.tap.topology.layout import Layout, ranks_of

_stages: weakref.WeakSet[Any] = weakref.WeakSet()


def note_stage(stage: Any) -> None:
    """Note a stage that this process runs (tap/frameworks/torch_pipelining.py sees them)."""
    _stages.add(stage)


def key() -> int:
    """Return a value that changes when the layout may have changed."""
    return len(_stages)


def layout(rank: int) -> Layout | None:
    """Return the ranks of pp, when a stage has been seen; else None."""
    for stage in list(_stages):
        ranks = ranks_of(getattr(stage, "group", None))
        if len(ranks) > 1 and rank in ranks:
            return Layout(source="pipeline stages", rank=rank, groups={"pp": ranks})
    return None
