"""Where an operator runs: phase, module path, source line; in backward, those of the forward op it belongs to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from hypocenter.nouns import Phase, Source
from hypocenter.tap.source import is_library, source_of, user_frame


@dataclass(slots=True)
class OpPlace:
    """Where one op ran. `code` and `line` are resolved to text only when somebody asks."""

    phase: Phase
    site: str
    module: str
    code: CodeType | None
    line: int
    node: str = ""  # autograd node in backward
    recompute: bool = False
    forward_op: str = ""  # in backward: the forward op whose gradient this is

    def source(self) -> Source | None:
        """The line with its text."""
        if self.code is None:
            return None
        return source_of(self.code.co_filename, self.line, self.code.co_name)


class OpContext:
    """Follows modules and autograd nodes while ops run. Used inside a dispatch mode."""

    def __init__(self, module_name: Callable[[torch.nn.Module], str | None]) -> None:
        self._module_name = module_name
        self._stack: list[tuple[str, str]] = []
        self._forward_of: dict[int, tuple[OpPlace, str]] = {}  # sequence number of an autograd node -> its forward op
        self.outside: tuple[CodeType | None, int] | None = None  # source of a replayed loss operation

    def attach(self) -> Callable[[], None]:
        """Follow module calls; returns the undo."""
        enter = module_hooks.register_module_forward_pre_hook(self._enter)
        leave = module_hooks.register_module_forward_hook(self._leave, with_kwargs=True, always_call=True)

        def undo() -> None:
            enter.remove()
            leave.remove()
            self._stack.clear()

        return undo

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        name = self._module_name(module)
        parent = self._stack[-1][0] if self._stack else ""
        self._stack.append((parent if name is None else name, type(module).__name__))

    def _leave(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any = None) -> None:
        # after an exception torch calls global hooks without keyword arguments, whatever they were registered with
        if self._stack:
            self._stack.pop()

    @property
    def site(self) -> str:
        """The module path now."""
        return self._stack[-1][0] if self._stack else "loss"

    def place(self, op: str) -> OpPlace:
        """Where the op that is being dispatched runs. Called from a `__torch_dispatch__`."""
        in_backward = torch._C._current_graph_task_id() != -1
        node = torch._C._current_autograd_node() if in_backward else None
        if in_backward and not self._stack:
            return self._in_backward(node)
        frame = user_frame(sys._getframe(2))
        code, line = (frame.f_code, frame.f_lineno) if frame is not None else (None, 0)
        if self.outside is not None and not self._stack:
            code, line = self.outside
        site, module = self._stack[-1] if self._stack else ("loss", "")
        place = OpPlace("forward" if self._stack else "loss", site, module, code, line, recompute=in_backward)
        # autograd makes the node, and takes its number, just before the op is dispatched to us
        self._forward_of.setdefault(torch.autograd._get_sequence_nr() - 1, (place, op))
        return place

    def _in_backward(self, node: Any) -> OpPlace:
        known = self._forward_of.get(node._sequence_nr()) if node is not None else None
        name = node.name() if node is not None else ""
        if known is None:
            frame = _hook_frame(sys._getframe(2))
            code, line = (frame.f_code, frame.f_lineno) if frame is not None else (None, 0)
            return OpPlace("backward", "", "", code, line, node=name)
        place, op = known
        return OpPlace("backward", place.site, place.module, place.code, place.line, node=name, forward_op=op)


def _hook_frame(frame: FrameType | None) -> FrameType | None:
    """The user's frame between here and the engine of autograd: a hook on a gradient. None when there is no such."""
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if not is_library(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None
