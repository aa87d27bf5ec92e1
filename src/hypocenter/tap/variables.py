"""What a module is called in the user's code: the variable or the attribute that holds it where it is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from torch import nn

from hypocenter.tap.frame_variables import variables_of
from hypocenter.tap.names import unwrap
from hypocenter.tap.source import is_library

_GENERIC = frozenset(
    {"self", "cls", "model", "module", "net", "network", "m", "mod", "layer", "block", "fn", "func", "f"}
)
_HOLD_SEVERAL = (list, tuple, dict, nn.ModuleList, nn.ModuleDict)
_MAX_ITEMS = 64  # of a list or dict of modules that is looked into


def variable_name(module: nn.Module, frame: FrameType | None, taken: frozenset[str] = frozenset()) -> str:
    """Return the user's name of a module: `netD`, `generator` for `self.generator`, `nets.0` in a list; or "".

    Variables of the outermost frame come first: a function further in calls every model by the name of its parameter.

    Args:
        module: the model that is called, wrapped or not.
        frame: the innermost frame to look in.
        taken: names that other models have already.
    """
    found = [name for name in _names(unwrap(module), frame) if name not in taken]
    return next((name for name in found if name not in _GENERIC), found[0] if found else "")


def _names(module: nn.Module, frame: FrameType | None) -> Iterator[str]:
    frames: list[FrameType] = []
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    scopes: list[Mapping[str, Any]] = []
    for each in reversed(frames):
        variables = variables_of(each)
        holder = variables.get("self")
        scopes += [variables, getattr(holder, "__dict__", {})]
    scopes += [each.f_globals for each in frames]
    for scope in scopes:
        yield from _bound_in(scope, module)
    for scope in scopes:
        yield from _item_in(scope, module)


def _bound_in(scope: Mapping[str, Any], module: nn.Module) -> Iterator[str]:
    for name, value in list(scope.items()):
        if isinstance(value, nn.Module) and _is_a_name(name) and unwrap(value) is module:
            yield name


def _item_in(scope: Mapping[str, Any], module: nn.Module) -> Iterator[str]:
    for name, value in list(scope.items()):
        if not _is_a_name(name) or type(value) not in _HOLD_SEVERAL or len(value) > _MAX_ITEMS:
            continue
        for key, item in list(value.items() if isinstance(value, (dict, nn.ModuleDict)) else enumerate(value)):
            if isinstance(item, nn.Module) and unwrap(item) is module:
                yield f"{name}.{key}"


def _is_a_name(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_") and name != "self"
