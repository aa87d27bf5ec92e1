"""DeepSpeed's engine and its groups: dp of the engine, tp and sequence parallelism where they were set up.

DeepSpeed's own getters make process groups when they are asked for one that is not there; so fields are read, never
getters called. Under Megatron the engine's `mpu` is Megatron's own, which is asked first (megatron.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from hypocenter.tap.topology.layout import Layout, ranks_of

_GROUPS = "deepspeed.utils.groups"


def layout(roots: Sequence[torch.nn.Module], rank: int) -> Layout | None:
    """Return what the engines among the roots know of the layout; None without an engine."""
    engines: list[Any] = [m for root in roots for m in root.modules() if _is_engine(m)]
    if not engines:
        return None
    engine, module = engines[0], sys.modules.get(_GROUPS)
    fields = {
        "dp": getattr(engine, "data_parallel_group", None),
        "tp": getattr(module, "_TENSOR_MODEL_PARALLEL_GROUP", None),
        "cp": getattr(engine, "seq_parallel_group", None),
    }
    grid = getattr(engine, "grid", None)  # of a PipelineEngine
    if grid is not None:
        fields |= {
            "pp": getattr(grid, "pp_proc_group", None), "tp": getattr(grid, "slice_proc_group", None),
            "dp": getattr(grid, "dp_proc_group", None),
        }  # fmt: skip
    groups = {axis: ranks for axis, group in fields.items() if group is not None and (ranks := ranks_of(group))}
    if len(experts := _experts(module)) > 1:
        groups["ep"] = experts
    return Layout(source="DeepSpeed", rank=rank, groups=groups)


def _is_engine(module: torch.nn.Module) -> bool:
    return any(kind.__name__ == "DeepSpeedEngine" for kind in type(module).__mro__)


def _experts(groups: Any) -> tuple[int, ...]:
    """Return the ranks of the expert group, where all layers have the same one; else ()."""
    known = list(getattr(groups, "_EXPERT_PARALLEL_GROUP", {}).values())
    return ranks_of(known[0]) if len(known) == 1 else ()
