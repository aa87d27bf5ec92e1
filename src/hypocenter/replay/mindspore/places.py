"""Where an operator of a replay runs: phase, cell path, source line; read off the Python stack."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import CodeType, FrameType

from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.nouns import Phase, Source
from hypocenter.tap.mindspore.names import NameMap, wrapped
from hypocenter.tap.source import is_library, source_of

_MAX_FRAMES = 400  # deeper than this nobody looks
_CALLS = frozenset({"construct", "__call__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one operator ran. `code` and `line` are resolved to text only when somebody asks."""

    phase: Phase
    site: str
    module: str = ""
    code: CodeType | None = None
    line: int = 0
    forward_op: str = ""  # in backward: the forward operator whose gradient this is

    def source(self) -> Source | None:
        """The line with its text."""
        return None if self.code is None else source_of(self.code.co_filename, self.line, self.code.co_name)

    def backward(self, forward_op: str) -> Place:
        """Of the gradient of an operator that ran here."""
        return replace(self, phase="backward", forward_op=forward_op)


class Places:
    """Finds them by the user's names of cells."""

    def __init__(self, names: NameMap) -> None:
        self._names = names

    def of(self, cell: object, place: Place) -> Place:
        """Of a function of a cell that was compiled: the cell's, where the user knows it."""
        name = self._names.cell_name(cell) if isinstance(cell, nn.Cell) else None
        return place if name is None else replace(place, phase="forward", site=name, module=type(cell).__name__)

    def here(self) -> Place:
        """Of the operator that is being dispatched."""
        code, line, found = None, 0, None
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if code is None and not is_library(frame.f_code.co_filename):
                code, line = frame.f_code, frame.f_lineno
            if frame.f_code.co_name in _CALLS:
                cell = frame.f_locals.get("self")
                if isinstance(cell, nn.Cell):
                    if wrapped(cell) is not None:
                        break  # MindSpore's own training cell: what it computes itself is loss code
                    name = self._names.cell_name(cell)
                    if name is not None:
                        found = (name, type(cell).__name__)
                        break
            frame = frame.f_back
        else:
            frame = None
        while code is None and frame is not None:  # a library's cell: the user's line is further out
            if not is_library(frame.f_code.co_filename):
                code, line = frame.f_code, frame.f_lineno
            frame = frame.f_back
        if found is None:
            return Place(phase="loss", site="loss", code=code, line=line)
        return Place(phase="forward", site=found[0], module=found[1], code=code, line=line)
