"""Calls of compiled graphs in GRAPH mode, as Python sees them: a cell, or what `value_and_grad`, `grad` or `jit` made.

Only outermost calls are told: what a graph calls is in the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, Protocol

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]
from mindspore.common import api  # pyright: ignore[reportMissingImports]

from hypocenter.tap.mindspore.calls import is_training_cell
from hypocenter.tap.mindspore.mentions import mentioned
from hypocenter.tap.mindspore.names import NameMap, children, is_optimizer
from hypocenter.tap.mindspore.patches import Patches

_DEEPEST = 4  # functions that mention functions
_BACKBONE = "_backbone"  # what MindSpore's WithLossCell calls the model: no part of a site
_RECOMPUTED = "recompute_"  # the scope of a cell that is recomputed, before it has a name


class Listener(Protocol):
    """What is told of calls of graphs."""

    def before_graph(self, owner: Any) -> None:
        """Hear that `owner`, a cell or a function, is about to be compiled, if it was not yet, and run."""
        ...

    def after_graph(self, owner: Any) -> None:
        """Hear that it has returned, or raised."""
        ...


def is_graph_mode() -> bool:
    """Return whether cells are compiled as a whole (GRAPH mode) now."""
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


def wait() -> None:
    """Wait until what was launched has run: a compiled function returns before it has."""
    if ms.get_context("device_target") == "CPU":
        api._pynative_executor.sync()
    else:
        ms.runtime.synchronize()


def trains(owner: Any) -> bool:
    """Return whether a call of it may be a part of training, and not of a cell that is only evaluated."""
    if not isinstance(owner, nn.Cell):
        return True
    return bool(owner.training) or is_optimizer(owner) or is_training_cell(owner)


def name_scopes(owner: Any, names: NameMap) -> None:
    """Give the cells of a graph's models the scopes by which names of operators tell them.

    MindSpore does this for a cell that is called, by its own attributes; below a function all operators would be
    `Default/...`, and below a model that was evaluated alone before they would be those of that. Only names change.
    """
    models = [owner] if isinstance(owner, nn.Cell) else _models(getattr(owner, "fn", owner), depth=_DEEPEST)
    for cell in models:
        names.add_root(cell)
    cells = dict(names.cells())
    for name, cell in cells.items():
        had = cell.get_scope() or ""
        cell._scope = (_RECOMPUTED if had.startswith(_RECOMPUTED) else "") + _scope(name, cells)


def _scope(name: str, cells: Mapping[str, Any]) -> str:
    """Return the scope of a cell: `Default/_backbone-Net/layers-CellList/0-Block` of `layers.0`."""
    parts = name.split(".") if name else []
    paths = [".".join(parts[: n + 1]) for n in range(len(parts))]
    inner = [
        f"{part}-{type(cells[path]).__name__ if path in cells else 'Cell'}"
        for part, path in zip(parts, paths, strict=True)
    ]
    is_inside = "" in cells and (not parts or parts[0] in children(cells[""]))
    first = [f"{_BACKBONE}-{type(cells['']).__name__}"] if is_inside else []
    return "/".join(["Default", *first, *inner])


def _models(function: Any, depth: int) -> list[Any]:
    """Return the cells that a function mentions, also through functions that it mentions; no optimizers."""
    if not hasattr(getattr(function, "__func__", function), "__code__"):
        return []
    found: list[Any] = []
    for thing in _closed_over(function) if is_library(function) else mentioned(function):
        if isinstance(thing, nn.Cell):
            found += [] if is_optimizer(thing) else [thing]
        elif depth and isinstance(thing, (FunctionType, MethodType)):
            found += _models(thing, depth - 1)
    return found


def _closed_over(function: Any) -> list[Any]:
    """Return what MindSpore's wrapper of a function wraps."""
    cells = getattr(getattr(function, "__func__", function), "__closure__", None) or ()
    return [cell.cell_contents for cell in cells if _is_filled(cell)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def is_library(function: Any) -> bool:
    """Return whether a function is a part of MindSpore."""
    return str(getattr(function, "__module__", "")).partition(".")[0] == "mindspore"
