"""A dispatch mode that is on from the first outermost call of a micro-batch to the end of its backward.

The mode is pushed and popped from hooks, not by a `with` block, so it steps aside whenever the stack is not as it left
it: the user's own modes come first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


class LiveMode:
    """Pushes a mode when a micro-batch begins, pops it when its backward is over."""

    def __init__(self, mode: TorchDispatchMode, warn: Callable[[str], None]) -> None:
        self.mode = mode
        self._warn = warn
        self._is_on = False
        self._stance: Any = None
        self.given_up = False

    def enter(self) -> None:
        """Switch the mode on, if no other dispatch mode is active."""
        if self._is_on or self.given_up:
            return
        if _get_current_dispatch_mode_stack():
            self.given_up = True
            self._warn("ops are not recorded: another dispatch mode is active")
            return
        if not self._is_left_to_compile and "torch._dynamo" in sys.modules:  # else it raises where it compiles nothing
            self._stance = torch.compiler.set_stance("force_eager")
        self.mode.__enter__()
        self._is_on = True

    @property
    def _is_left_to_compile(self) -> bool:
        """Whether torch compiles although the mode is on."""
        asks = getattr(self.mode, "ignore_compile_internals", None)
        return asks is not None and bool(asks())

    def leave(self) -> None:
        """Switch the mode off."""
        if not self._is_on:
            return
        self._is_on = False
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None
        stack = _get_current_dispatch_mode_stack()
        if stack and stack[-1] is self.mode:
            self.mode.__exit__(None, None, None)
        else:
            self.given_up = True
            self._warn("another dispatch mode was entered inside a micro-batch: ops are no longer recorded")
