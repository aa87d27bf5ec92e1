"""Python state that a program keeps beside its tensors: one that changes in a replay explains other bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_PLAIN = (int, float, str, bool, type(None))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MOST_ITEMS = 64  # of a container that are looked at


def own_state(
    modules: Sequence[tuple[str, torch.nn.Module]], parameters: Sequence[tuple[str, torch.Tensor]]
) -> dict[str, object]:
    """Numbers, texts and sizes of containers that modules, their hooks and their forwards keep, by where they are."""
    found: dict[str, object] = {}
    for name, module in modules:
        _look(f"{name or type(module).__name__}", module.__dict__, found)
        _look_at_function(f"{name}.forward", module.__dict__.get("forward"), found)
        for table in _HOOKS:
            for number, hook in enumerate(list(getattr(module, table, {}).values())):
                _look_at_function(f"{name}.{table}[{number}]", hook, found)
    for name, parameter in parameters:
        for number, hook in enumerate(list((getattr(parameter, "_backward_hooks", None) or {}).values())):
            _look_at_function(f"{name} hook[{number}]", hook, found)
    return found


def changed(before: dict[str, object], after: dict[str, object]) -> tuple[str, ...]:
    """Where something is not as it was."""
    return tuple(name for name, value in before.items() if name in after and after[name] != value)


def _look(where: str, table: Any, found: dict[str, object]) -> None:
    for key, value in list(table.items()):
        if isinstance(key, str) and not key.startswith("_") and key != "training":
            _note(f"{where}.{key}", value, found)


def _look_at_function(where: str, function: Callable[..., Any] | None, found: dict[str, object]) -> None:
    if function is None:
        return
    function = getattr(function, "func", function)  # functools.partial
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, torch.nn.Module):
        _look(where, getattr(owner, "__dict__", {}), found)
    elif not hasattr(function, "__code__"):
        _look(where, getattr(function, "__dict__", {}), found)
    for number, cell in enumerate(getattr(function, "__closure__", None) or ()):
        try:
            _note(f"{where}[{number}]", cell.cell_contents, found)
        except ValueError:  # an empty cell
            continue


def _note(where: str, value: object, found: dict[str, object]) -> None:
    if isinstance(value, _PLAIN):
        found[where] = value if value == value else "nan"
    elif isinstance(value, random.Random):
        found[where] = hash(value.getstate())
    elif isinstance(value, torch.Generator):
        found[where] = hash(value.get_state().numpy().tobytes())
    elif isinstance(value, (list, tuple, set, dict)):
        found[where] = tuple(_items(value))


def _items(value: Any) -> Iterator[object]:
    yield len(value)
    for item in list(value)[:MOST_ITEMS]:
        held = (item, value[item]) if isinstance(value, dict) else (item,)
        yield from (part for part in held if isinstance(part, _PLAIN) and part == part)
