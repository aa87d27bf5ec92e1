"""Which module's code is running: read off the Python stack, so that it costs nothing until somebody asks."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

import torch
from torch import nn

from hypocenter.tap.frame_variables import self_of
from hypocenter.tap.names import NameMap

BACKWARD = "backward"
_MAX_FRAMES = 400  # deeper than this nobody looks

CALLS: frozenset[CodeType] = frozenset(
    function.__code__
    for name in ("_call_impl", "_wrapped_call_impl")
    if (function := getattr(nn.Module, name, None)) is not None
)


def running_module(frame: FrameType | None = None) -> nn.Module | None:
    """Return the innermost module whose call is under way on this thread, or on that of `frame`; None without one."""
    is_own = frame is None
    frame = frame or sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code in CALLS:
            module = self_of(frame, is_own=is_own)
            return module if isinstance(module, nn.Module) else None
        frame = frame.f_back
    return None


def site(names: NameMap) -> str:
    """Return the path of the module that runs: "" outside of all, "backward" while gradients are computed."""
    if torch._C._current_graph_task_id() != -1:
        return BACKWARD
    module = running_module()
    return "" if module is None else names.module_name(module) or ""
