"""Cells that a call of something may run: a cell's own, those that a function mentions, itself or through others."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.tap.mindspore.mentions import is_library, mentioned
from hypocenter.tap.mindspore.names import children, is_optimizer, unwrap

_DEEPEST = 4  # functions that mention functions


def optimizers_in(owner: Any) -> list[Any]:
    """Return the optimizers that a cell holds or a function mentions, each once, also one inside another."""
    return _once(cell for cell in _all(owner) if is_optimizer(cell))


def models_in(owner: Any) -> list[Any]:
    """Return models, without MindSpore's wrappers: the largest cells that hold parameters and no optimizer."""
    return _once(model for cell in _reached(owner) for model in _models(cell))


def _models(cell: Any) -> Iterator[Any]:
    cell = unwrap(cell)
    if is_optimizer(cell):
        return
    if any(is_optimizer(each) for each in _below(cell)):
        for child in children(cell).values():
            if child is not None:
                yield from _models(child)
    elif next(iter(cell.get_parameters()), None) is not None:
        yield cell


def _all(owner: Any) -> Iterator[Any]:
    for cell in _reached(owner):
        yield from _below(cell)


def _below(cell: Any) -> Iterator[Any]:
    for _, each in cell.cells_and_names():
        yield each


def _reached(thing: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    if isinstance(thing, nn.Cell):
        yield thing
        return
    inner = getattr(thing, "__wrapped__", thing)
    if not isinstance(inner, (FunctionType, MethodType)):
        return
    owner = getattr(inner, "__self__", None)
    if isinstance(owner, nn.Cell):
        yield owner
    for each in [*mentioned(inner), *_members(owner)]:
        if isinstance(each, nn.Cell):
            yield each
        elif depth and isinstance(each, (FunctionType, MethodType)) and not is_library(each):
            yield from _reached(each, depth - 1)
        else:
            yield from (held for held in _members(each) if isinstance(held, nn.Cell))


def _members(thing: Any) -> list[Any]:
    """Return what the program has set on an object of its own, a trainer for example."""
    if thing is None or isinstance(thing, (type, ModuleType, nn.Cell, FunctionType, MethodType)) or is_library(thing):
        return []
    held = getattr(thing, "__dict__", None)
    return list(held.values()) if isinstance(held, dict) else []


def _once(things: Iterator[Any]) -> list[Any]:
    return list({id(thing): thing for thing in things}.values())
