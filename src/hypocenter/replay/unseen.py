"""Which line ran a kernel that the dispatcher does not show: a replay in which its result is looked at line by line.

What is made room for is zero in that replay. If the bad values do not come, nothing had written there at all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.optrace import UNSEEN, UNWRITTEN
from hypocenter.replay.python_state import is_installed
from hypocenter.tap.nodes import Node, nonfinite_bits
from hypocenter.tap.source import is_library, user_frame
from hypocenter.tap.storages import UNDEFINED
from hypocenter.tap.tracer import OpTracer


class Watching(OpTracer):
    """Traces as before, and follows the lines of the program from one op on until what that op gave is bad."""

    after = -1  # number of the op, among those that were traced

    def restart(self) -> None:
        """The replay starts over."""
        super().restart()
        self._n, self._lines, self.has_come = 0, None, False

    _n = 0
    _lines: _Lines | None = None
    has_come = False  # the bad values
    site: tuple[str, str] | None = None  # the module that was being called then, its name and class

    def after_op(self, base: str, outputs: Sequence[torch.Tensor]) -> None:
        """Is it the one that made room, or wrote before?"""
        if base in UNDEFINED and base != "resize_":
            for tensor in outputs:
                tensor.zero_()
        self._n += 1
        if self._n - 1 == self.after:
            self._lines = _Lines(outputs, self._note_site)
            self._lines.follow(sys._getframe(1))

    def met_unseen(self, tensor: torch.Tensor) -> None:
        """Is it what was followed?"""
        if self._lines is not None and self._lines.is_of(tensor):
            self.has_come = True
            self._lines.stop()

    def _note_site(self) -> None:
        self.site = self.context.called

    def __exit__(self, *raised: Any) -> Any:
        if self._lines is not None:
            self._lines.stop()
        return super().__exit__(*raised)

    def settle(self, node: Node) -> None:
        """Write into a node of an earlier trace what was found."""
        if not self.has_come:
            node.traced = replace(node.traced, op=UNWRITTEN)
        elif self._lines is not None and self._lines.found is not None:
            code, line = self._lines.found
            site, module = self.site or (node.place.site, node.place.module)
            node.place = replace(node.place, code=code, line=line, site=site, module=module)


def number_of(nodes: Sequence[Node], index: int) -> int:
    """Its number among the ops that were traced."""
    return sum(node.traced.op != UNSEEN for node in nodes[:index])


class _Lines:
    """The lines of the user's code, as they run in this thread.

    Attributes:
        found: code and line that had just run when one of the tensors was not finite any more: in the function that
            wrote them before, where that is still running, else in the user's innermost one.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], on_found: Any) -> None:
        self._tensors = [t for t in tensors if t.is_floating_point() or t.is_complex()]
        self._on_found = on_found
        self._last: tuple[CodeType, int] | None = None
        self._home: FrameType | None = None
        self._line_at_home = 0
        self._before: Any = None
        self._frames: list[tuple[FrameType, Any]] = []
        self._is_on = False
        self.found: tuple[CodeType, int] | None = None

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether it shares memory with one of them."""
        return any(t.untyped_storage()._cdata == tensor.untyped_storage()._cdata for t in self._tensors)

    def follow(self, frame: FrameType) -> None:
        """From here on."""
        inner = user_frame(frame)
        if inner is None or self._is_bad():
            return
        self._home, self._line_at_home, self._is_on = inner, inner.f_lineno, True
        outer: FrameType | None = inner
        while outer is not None:
            if not is_library(outer.f_code.co_filename):
                self._frames.append((outer, outer.f_trace))
                outer.f_trace = self._line
            outer = outer.f_back
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def stop(self) -> None:
        """No further; whoever followed lines before goes on."""
        if self._is_on:
            self._is_on = False
            sys.settrace(self._before)
            for frame, before in self._frames:
                frame.f_trace = before
            self._frames.clear()
        self._home = None
        self._tensors = self._tensors if self.found is None else []

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return None if not self._is_on or is_library(frame.f_code.co_filename) else self._line(frame, event, arg)

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self._is_on:
            return None
        if self._is_bad():
            self.found, self._is_on = self._place(frame), False
            self._on_found()
            sys.settrace(self._before)
            return None
        if event == "line" and frame is self._home:
            self._line_at_home = frame.f_lineno
        elif event == "line" and not is_installed(frame.f_code.co_filename):
            self._last = frame.f_code, frame.f_lineno
        return self._line

    def _place(self, frame: FrameType | None) -> tuple[CodeType, int] | None:
        home = self._home
        if home is not None and frame is home:  # on its next line already
            return home.f_code, self._line_at_home
        while frame is not None and frame is not home:
            frame = frame.f_back
        return self._last if frame is None else (frame.f_code, frame.f_lineno)

    def _is_bad(self) -> bool:
        with _disable_current_modes(), torch.no_grad():
            return any(nonfinite_bits(tensor) for tensor in self._tensors)
