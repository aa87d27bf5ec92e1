"""Keeps objects for good, also past the end of the interpreter, which empties all modules.

A process group that is freed waits for its work, in gloo as long as a collective may take: where a rank is gone or
stuck that is long.
"""

from __future__ import annotations

import ctypes


def never_freed(what: object) -> None:
    """Keep an object, and all that it refers to, for ever, by one reference more that is never given back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))
