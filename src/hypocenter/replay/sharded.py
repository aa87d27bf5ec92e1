"""FSDP2 after a replay: a whole one leaves its state as it was; what one that broke off left behind is put back."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any


@contextlib.contextmanager
def put_back(roots: Sequence[Any], *, always: bool = False) -> Generator[None, None, None]:
    """Shard every parameter and idle every state again if a replay of these modules raises in this block.

    Args:
        always: also if not: no backward follows, which would do it.
    """
    is_whole = False
    try:
        yield
        is_whole = not always
    finally:
        for root in roots if not is_whole else ():
            for state in _states(root):
                _reset(state)


def _states(root: Any) -> list[Any]:
    found = [m._get_fsdp_state() for m in root.modules() if hasattr(m, "_get_fsdp_state")]
    return list({id(state): state for state in found}.values())


def _reset(state: Any) -> None:
    """Do what FSDPState._reset_iter_state does (torch 2.13), for older versions too, state by state."""
    idle = type(state._training_state).IDLE
    communication = getattr(state, "_comm_ctx", None)
    if communication is not None:
        communication.all_gather_state = None
        communication.post_forward_order.clear()
        for name in ("reduce_scatter_states", "_last_post_reduce_events"):
            with contextlib.suppress(AttributeError):
                getattr(communication, name).clear()
        with contextlib.suppress(AttributeError):  # before 2.10: one state, not a list
            communication.reduce_scatter_state = None
    for group in _parameter_groups(state):
        group._all_gather_result = None
        group._post_reduce_event = group._reshard_after_forward_event = None
        group._post_forward_indices.clear()
        group._training_state = type(group._training_state).IDLE
        for parameter in group.fsdp_params:
            if (unsharded := getattr(parameter, "_unsharded_param", None)) is not None:
                unsharded.grad = None
            parameter.unsharded_accumulated_grad = None
        group._to_sharded()
    state._training_state = idle
    context = state._state_ctx
    context.iter_forward_root = None
    context.post_backward_final_callback_queued = False
    with contextlib.suppress(AttributeError):
        state._modules_to_run_forward.clear()


def _parameter_groups(state: Any) -> list[Any]:
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    one = getattr(state, "_fsdp_param_group", None)
    return [] if one is None else [one]
