"""Variables of functions that are running, looked at without keeping anything alive by having looked.

Up to Python 3.12 a frame keeps the snapshot of its variables that it gives, and with it the values of that moment: a
batch and its outputs, an optimizer that the program deletes afterwards. So the snapshot is emptied.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

_READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})


def variables_of(frame: FrameType, *, is_own: bool = True) -> Mapping[str, Any]:
    """Return the variables of a frame that is running; the snapshot stays where its function may have asked for it.

    Args:
        frame: running.
        is_own: on this thread. That of another may be under a debugger right now, which would put back what is left.
    """
    held = frame.f_locals
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return held  # of a script: its variables themselves
    found = dict(held)
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None  # what it left there would become of them
    if sys.version_info < (3, 13) and is_own and not is_watched and _READS_LOCALS.isdisjoint(frame.f_code.co_names):
        held.clear()
    return found


def self_of(frame: FrameType, *, is_own: bool = True) -> Any:
    """Return the object whose method is running in a frame; None if it is no method. `is_own`: as of `variables_of`."""
    return variables_of(frame, is_own=is_own).get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
