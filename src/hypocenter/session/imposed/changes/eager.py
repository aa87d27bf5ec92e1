"""`eager=on`: torch.compile compiles nothing. `eager=BACKEND`: it compiles with this one. `eager=off`: as it is.

How many graphs were compiled is noted at the end.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from hypocenter.session.imposed.later import when_imported


def begin(value: str, note: Callable[[str], None]) -> None:
    """Set TorchDynamo's switch when it is imported, or replace `torch.compile`."""
    if value == "on":
        when_imported("torch._dynamo.config", _disable)
    elif value != "off":
        _compile_by(value)
    atexit.register(_note_graphs, note)


def _disable() -> None:
    sys.modules["torch._dynamo.config"].disable = True  # type: ignore[attr-defined]


def _compile_by(backend: str) -> None:
    original = torch.compile

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        kwargs |= {"backend": backend, "mode": None, "options": None}
        return original(*args, **kwargs)

    torch.compile = compile  # type: ignore[assignment]


def _note_graphs(note: Callable[[str], None]) -> None:
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    n_graphs = counters.get("stats", {}).get("unique_graphs", 0)
    if n_graphs:
        note(f"compiled {n_graphs} graph{'s' if n_graphs != 1 else ''}")
