"""Where an operator of a replay runs: phase, cell path, source line; read off the Python stack."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.replay.place import Place
from hypocenter.tap.frame_variables import variables_of
from hypocenter.tap.mindspore.names import NameMap, wrapped
from hypocenter.tap.source import is_library

_MAX_FRAMES = 400  # deeper than this nobody looks
_CALLS = frozenset({"construct", "__call__"})


class Places:
    """Find the place of an operator by the user's names of cells."""

    def __init__(self, names: NameMap) -> None:
        self._names = names

    def of(self, cell: object, place: Place) -> Place:
        """Return the place of a compiled function of a cell: the cell's, where the user knows it."""
        name = self._names.cell_name(cell) if isinstance(cell, nn.Cell) else None
        return place if name is None else replace(place, phase="forward", site=name, module=type(cell).__name__)

    def here(self) -> Place:
        """Return the place of the operator that is being dispatched."""
        code, line, found = None, 0, None
        frame: FrameType | None = sys._getframe(1)
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if code is None and not is_library(frame.f_code.co_filename):
                code, line = frame.f_code, frame.f_lineno
            if frame.f_code.co_name in _CALLS:
                cell = variables_of(frame).get("self")
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
