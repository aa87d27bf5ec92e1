"""Calls of compiled graphs in GRAPH mode, as Python sees them: a cell, or what `value_and_grad`, `grad` or `jit` made.

Only outermost calls are told: what a graph calls is in the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]
from mindspore.common import api  # pyright: ignore[reportMissingImports]

from hypocenter.tap.mindspore.patches import Patches


class Listener(Protocol):
    """Is told of calls."""

    def before_graph(self, owner: Any) -> None:
        """`owner`, a cell or a function, is about to be compiled, if it was not yet, and run."""
        ...

    def after_graph(self, owner: Any) -> None:
        """It has returned, or raised."""
        ...


def is_graph_mode() -> bool:
    """Whether cells are compiled as a whole (GRAPH mode) now."""
    return ms.get_context("mode") == ms.GRAPH_MODE


class GraphCalls:
    """Tells a listener of outermost calls of graphs, while MindSpore is in GRAPH mode."""

    def __init__(self, patches: Patches, listener: Listener) -> None:
        self._patches, self._listener = patches, listener
        self._here = threading.local()

    def attach(self) -> None:
        """Patch the two ways in which a graph is called; `Patches.undo` takes it off."""
        self._patches.wrap(nn.Cell, "compile_and_run", lambda original: self._told(original, lambda cell: cell))
        executor = getattr(api, "_JitExecutor", None)
        if executor is not None:
            self._patches.wrap(executor, "__call__", lambda original: self._told(original, _function_of))

    def _told(self, original: Callable[..., Any], owner_of: Callable[[Any], Any]) -> Callable[..., Any]:
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "is_inside", False) or not is_graph_mode():
                return original(this, *args, **kwargs)
            owner = owner_of(this)
            self._here.is_inside = True
            try:
                self._listener.before_graph(owner)
                return original(this, *args, **kwargs)
            finally:
                self._here.is_inside = False
                self._listener.after_graph(owner)

        return call


def _function_of(executor: Any) -> Any:
    return getattr(executor, "obj", None) or getattr(executor, "fn", None)


def trains(owner: Any) -> bool:
    """Whether a call of it may be a part of training: no cell that is only evaluated."""
    return not isinstance(owner, nn.Cell) or bool(owner.training) or holds_optimizer(owner)


def holds_optimizer(owner: Any) -> bool:
    """Whether a call of a cell updates parameters."""
    kinds = tuple(k for k in (nn.Optimizer, _experimental()) if k is not None)
    return isinstance(owner, nn.Cell) and any(isinstance(cell, kinds) for _, cell in owner.cells_and_names())


def _experimental() -> Any:
    try:
        from mindspore.experimental import optim  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return getattr(optim, "Optimizer", None)
