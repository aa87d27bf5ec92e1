"""Megatron-Core's parallel_state: tp, pp and dp always; cp and ep where there is more than one rank of them."""

from __future__ import annotations

import sys
from typing import Any

from hypocenter.tap.topology.layout import Layout, ranks_of

_MODULE = "megatron.core.parallel_state"
_GROUPS = {
    "tp": "get_tensor_model_parallel_group",
    "pp": "get_pipeline_model_parallel_group",
    "dp": "get_data_parallel_group",  # without context parallelism
    "cp": "get_context_parallel_group",
    "ep": "get_expert_model_parallel_group",
}
_ALWAYS = frozenset({"tp", "pp", "dp"})


def layout(rank: int) -> Layout | None:
    """Return the layout that Megatron-Core has made; None while there is none."""
    state = _initialized()
    if state is None:
        return None
    found = {axis: _ranks(state, getter) for axis, getter in _GROUPS.items()}
    groups = {axis: ranks for axis, ranks in found.items() if len(ranks) > 1 or (ranks and axis in _ALWAYS)}
    return Layout(source="Megatron-Core", rank=rank, groups=groups)


def key() -> object:
    """Return a value that changes when the layout may have changed."""
    state = _initialized()
    return id(_group(state, _GROUPS["tp"])) if state is not None else None


def _initialized() -> Any:
    state = sys.modules.get(_MODULE)
    ask = getattr(state, "model_parallel_is_initialized", None)
    return state if ask is not None and ask() else None


def _ranks(state: Any, getter: str) -> tuple[int, ...]:
    group = _group(state, getter)
    return () if group is None else ranks_of(group)


def _group(state: Any, getter: str) -> Any:
    try:
        return getattr(state, getter)()
    except (AttributeError, AssertionError):  # another version; not initialized
        return None
