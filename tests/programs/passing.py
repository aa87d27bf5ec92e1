"""Loaded by a program that is watched without a fault: which steps pass which place, and in which module that is."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

WRAPPER = "module."  # of DistributedDataParallel: names are those of the model inside


def noting(answer: str) -> Callable[[str, int], None]:
    """A function to be called at each place; when the program ends, the first rank writes what it saw."""
    seen: dict[str, dict[str, Any]] = {}

    def note(name: str, step: int) -> None:
        entry = seen.setdefault(name, {"steps": [], "sites": []})
        if step >= 0 and step not in entry["steps"]:
            entry["steps"].append(step)
        if step <= 0:  # a class with several instances is passed in each
            entry["sites"] = sorted({*entry["sites"], *_names(sys._getframe(1))})

    if os.environ.get("RANK", "0") == "0":
        atexit.register(lambda: Path(answer).write_text(json.dumps(seen), encoding="utf-8"))
    return note


def _names(frame: FrameType) -> set[str]:
    """Names of the module that the frame is part of a call of, from the outermost modules that variables hold."""
    module = _called(frame)
    if module is None:
        return set()
    held = dict(_held(frame))
    roots = {name: m for name, m in held.items() if not any(_has(other, m) for other in held.values())}
    names: set[str] = set()
    for variable, root in roots.items():
        for path, inner in root.named_modules(remove_duplicate=False):
            if inner is module:
                own = path.removeprefix(WRAPPER) if path != WRAPPER[:-1] else ""
                names |= {own, f"{variable}.{own}"} if own else {"", variable, type(module).__name__}
    return names


def _called(frame: FrameType | None) -> nn.Module | None:
    """The innermost module whose call the frame is part of: a method of a model may run in no call of it."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "forward" and isinstance(owner, nn.Module):
            return owner
        frame = frame.f_back
    return None


def _held(frame: FrameType | None) -> Iterator[tuple[str, nn.Module]]:
    """Variables of the program's frames that are modules."""
    script = frame.f_code.co_filename if frame else None
    while frame is not None:
        if frame.f_code.co_filename == script:
            for name, value in [*frame.f_globals.items(), *frame.f_locals.items()]:
                if name != "self" and isinstance(value, nn.Module):
                    yield name, value
        frame = frame.f_back


def _has(outer: nn.Module, inner: nn.Module) -> bool:
    return outer is not inner and any(m is inner for m in outer.modules())
