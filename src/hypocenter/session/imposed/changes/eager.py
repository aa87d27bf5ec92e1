"""`eager=on`: torch.compile compiles nothing. `eager=BACKEND`: it compiles with this one. `eager=off`: as it is.

`eager=guilty`, `eager=guilty,BACKEND`: it compiles as it would, or with this one, and of the first graph that computes
something else than uncompiled the guilty operator is noted. How many graphs were compiled is noted at the end.
"""

from __future__ import annotations

import atexit
import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import fx

from hypocenter.session.imposed.guilty_operator import Compile, guilty_operator
from hypocenter.session.imposed.later import when_imported

GUILTY = "guilty"


def begin(value: str, note: Callable[[str], None]) -> None:
    """Set TorchDynamo's switch when it is imported, or replace `torch.compile`."""
    if value == "on":
        when_imported("torch._dynamo.config", _disable)
    elif value.partition(",")[0] == GUILTY:
        _look_for_guilty(value.partition(",")[2], note)
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


def _look_for_guilty(instead: str, note: Callable[[str], None]) -> None:
    original: Any = torch.compile

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        asked = _asked(_backend(kwargs | ({"backend": instead} if instead else {})), note)
        return original(*args, **kwargs | {"backend": asked, "mode": None, "options": None})

    torch.compile = compile  # type: ignore[assignment]


def _backend(kwargs: dict[str, Any]) -> Compile:
    """Make the backend that `torch.compile` would make of its arguments."""
    given = kwargs.get("backend", "inductor")
    settings = [kwargs.get(name) for name in ("mode", "options", "dynamic")]
    if given == "inductor":
        own: Compile = torch._TorchCompileInductorWrapper(*settings)  # type: ignore[attr-defined]
        return own
    other: Compile = torch._TorchCompileWrapper(given, *settings)  # type: ignore[attr-defined]
    return other


def _asked(own: Compile, note: Callable[[str], None]) -> Compile:
    """Wrap a backend so that each graph is asked at its first call, until one of them is guilty."""
    is_found: list[bool] = []

    def backend(module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        kept = fx.GraphModule(module, copy.deepcopy(module.graph))  # a backend may change what it is given
        compiled, is_asked = own(module, examples), list[bool]()

        def call(*inputs: Any) -> Any:
            if not is_asked and not is_found:
                is_asked.append(True)
                _ask(kept, inputs)
            return compiled(*inputs)

        return call

    def _ask(module: fx.GraphModule, inputs: tuple[Any, ...]) -> None:
        try:
            guilty = guilty_operator(module.graph, inputs, own)
        except Exception as error:  # a graph whose parts cannot be compiled
            note(f"not bisected: {type(error).__name__}: {str(error)[:200]}")
            return
        if guilty is not None:
            is_found.append(True)
            note(f"{GUILTY} {msgspec.json.encode(guilty).decode()}")

    return backend


def _note_graphs(note: Callable[[str], None]) -> None:
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    n_graphs = counters.get("stats", {}).get("unique_graphs", 0)
    if n_graphs:
        note(f"compiled {n_graphs} graph{'s' if n_graphs != 1 else ''}")
