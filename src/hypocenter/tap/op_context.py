"""Where an operator runs: phase, module path, source line; in backward, those of the forward op it belongs to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from hypocenter.nouns import Phase, Source
from hypocenter.tap.own_frame import OwnFrame
from hypocenter.tap.source import is_library, source_of, user_frame

MOST_CALLERS = 24  # frames of the user above a line: a model has about as many modules in each other


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
    callers: tuple[tuple[CodeType, int], ...] = ()  # of that line in a replay, the nearest first

    def source(self) -> Source | None:
        """Return the line of the program with its text; None where it is not known."""
        if self.code is None:
            return None
        return source_of(self.code.co_filename, self.line, self.code.co_name)

    def stack(self) -> tuple[Source, ...]:
        """Return the user's lines that led there, the outermost first."""
        return tuple(source_of(code.co_filename, line, code.co_name) for code, line in reversed(self.callers))


@dataclass(frozen=True, slots=True)
class Outside:
    """An operation of the user's code outside of every module, which is replayed."""

    code: CodeType | None
    line: int
    phase: Phase
    site: str


class OpContext:
    """Follows modules and autograd nodes while ops run. Used inside a dispatch mode.

    Args:
        module_name: the user's name of a module.
        knows_callers: places have the lines that led there. Without, they cost a third less.
    """

    def __init__(self, module_name: Callable[[torch.nn.Module], str | None], *, knows_callers: bool = True) -> None:
        self._module_name, self._knows_callers = module_name, knows_callers
        self._stack: list[tuple[str, str]] = []
        self._forward_of: dict[int, tuple[OpPlace, str]] = {}  # sequence number of an autograd node -> its forward op
        self._chains: dict[tuple[int, ...], tuple[tuple[CodeType, int], ...]] = {}  # of callers: many ops share one
        self.outside: Outside | None = None  # the operation of the user's code that a replay does
        self.called_at: tuple[CodeType | None, int] = (None, 0)  # where the user made the call that is done again
        self.done_by: CodeType | None = None  # what does it again: frames beyond it have nothing to do with the call
        self._around = torch._C._current_graph_task_id()  # a backward that all this is done in, from a hook of the user

    def attach(self) -> Callable[[], None]:
        """Follow module calls; returns the undo."""
        calls = OwnFrame(torch.nn.Module._wrapped_call_impl, self._enter)
        calls.listen()

        def undo() -> None:
            calls.stop()
            self._stack.clear()

        return undo

    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Callable[[Any], None]:
        name = self._module_name(module)
        parent = self._stack[-1][0] if self._stack else ""
        self._stack.append((parent if name is None else name, type(module).__name__))
        return self._leave

    def _leave(self, result: Any) -> None:
        if self._stack:
            self._stack.pop()

    @property
    def site(self) -> str:
        """The path of the module that is being called; "loss" outside of all."""
        return self._stack[-1][0] if self._stack else "loss"

    @property
    def called(self) -> tuple[str, str] | None:
        """Name and class of the module that is being called; None outside of all."""
        return self._stack[-1] if self._stack else None

    def place(self, op: str) -> OpPlace:
        """Return where the op that is being dispatched runs. Call it from a `__torch_dispatch__`."""
        in_backward = torch._C._current_graph_task_id() not in (-1, self._around)
        node = torch._C._current_autograd_node() if in_backward else None
        if in_backward and not self._stack:
            return self._in_backward(node)
        frame = user_frame(sys._getframe(2), until=self.done_by)
        code, line = (frame.f_code, frame.f_lineno) if frame is not None else self.called_at
        site, module = self._stack[-1] if self._stack else ("loss", "")
        phase: Phase = "forward" if self._stack else "loss"
        if self.outside is not None and not self._stack:
            if self.outside.code is not None:
                code, line = self.outside.code, self.outside.line
            site, phase = self.outside.site, self.outside.phase
        is_asked = self._knows_callers and frame is not None and self.done_by is not None
        callers = self._callers(frame) if is_asked and frame is not None else ()
        place = OpPlace(phase, site, module, code, line, recompute=in_backward, callers=callers)
        # autograd makes the node, and takes its number, just before the op is dispatched to us
        self._forward_of.setdefault(torch.autograd._get_sequence_nr() - 1, (place, op))
        return place

    def line(self, frame: FrameType) -> Source | None:
        """Return the line of the program that led to this frame; None where it is not known."""
        found = user_frame(frame, until=self.done_by)
        code, line = (found.f_code, found.f_lineno) if found is not None else self.called_at
        return None if code is None else source_of(code.co_filename, line, code.co_name)

    def _callers(self, frame: FrameType) -> tuple[tuple[CodeType, int], ...]:
        """Return the user's frames around this one within the replay, and the line from which the program called it."""
        found: list[tuple[CodeType, int]] = []
        while len(found) < MOST_CALLERS and (around := user_frame(frame.f_back, until=self.done_by)) is not None:
            found.append((around.f_code, around.f_lineno))
            frame = around
        code, line = self.called_at
        if code is not None:
            found.append((code, line))
        key = tuple(part for code, line in found for part in (id(code), line))
        return self._chains.setdefault(key, tuple(found))

    def _in_backward(self, node: Any) -> OpPlace:
        """Return the place of an op in backward: its forward op's, or the line of a hook or Function of the user."""
        known = self._forward_of.get(node._sequence_nr()) if node is not None else None
        name = node.name() if node is not None else ""
        frame = _frame_in_backward(sys._getframe(2))
        if known is not None and frame is None:
            place, op = known
            return OpPlace(
                "backward", place.site, place.module, place.code, place.line, name, forward_op=op, callers=place.callers
            )
        site, module = (known[0].site, known[0].module) if known is not None else ("", "")
        code, line = (frame.f_code, frame.f_lineno) if frame is not None else (None, 0)
        return OpPlace("backward", site, module, code, line, node=name)


def _frame_in_backward(frame: FrameType | None) -> FrameType | None:
    """Return the user's frame between here and autograd's engine; None where the engine runs the operator itself."""
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if not is_library(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None
