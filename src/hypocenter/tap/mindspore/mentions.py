"""What a function mentions: globals, what it closes over, what is set on its `self`, and attributes of these."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from hypocenter.tap.mindspore.names import children

_DEEPEST = 4  # functions that mention functions


def mentioned(function: Any) -> list[Any]:
    """Return the objects that a function names, and attributes that it names of them (`self.optimizer`)."""
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return []
    found = [inner.__globals__.get(name) for name in code.co_names]
    for held in inner.__closure__ or ():
        try:
            found.append(held.cell_contents)
        except ValueError:  # not filled yet
            continue
    owner = getattr(function, "__self__", None)
    if owner is not None:
        found += [owner, *children(owner).values()]
    return [*found, *_attributes(found, frozenset(code.co_names))]


def mentioned_through(function: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    """Yield the objects that a function names, also through functions that it names."""
    for each in mentioned(getattr(function, "__wrapped__", function)):
        yield each
        if depth and isinstance(each, (FunctionType, MethodType)) and not is_library(each):
            yield from mentioned_through(each, depth - 1)


def is_library(function: Any) -> bool:
    """Return whether it is MindSpore's own; what `value_and_grad` and `grad` make, which hold the user's, is not."""
    name = str(getattr(function, "__qualname__", ""))
    return str(getattr(function, "__module__", "")).startswith("mindspore") and not name.endswith(".after_grad")


def _attributes(things: list[Any], names: frozenset[str]) -> list[Any]:
    """Return attributes of these names that are set on objects themselves; no property is asked."""
    found: list[Any] = []
    for thing in things:
        if isinstance(thing, (type, ModuleType, FunctionType, MethodType)):
            continue
        held = getattr(thing, "__dict__", None)
        if isinstance(held, dict):
            found += [held[name] for name in names & held.keys()]
        found += [cell for name, cell in children(thing).items() if name in names]
    return found
