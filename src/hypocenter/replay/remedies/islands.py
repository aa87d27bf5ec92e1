"""`hypocenter.island(model, ["block1.0.attn"])`: modules, or ops in them, that compute in float32 from now on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType

import torch
from torch import nn

from hypocenter.errors import ConfigError, UnknownNameError
from hypocenter.replay.remedies.casts import NARROWER
from hypocenter.replay.remedies.layer import Layer
from hypocenter.replay.remedies.op_forward import OpForward, function_names, is_function
from hypocenter.replay.remedies.wide_forward import WideForward
from hypocenter.tap.names import strip, walk


class IslandHandle:
    """Islands that are in place; take them away with `remove()`, or use it as a context manager."""

    def __init__(self, targets: tuple[str, ...], layers: Sequence[Layer]) -> None:
        self.targets = targets
        self._layers = list(layers)

    def remove(self) -> None:
        """Give the modules their own forward back. Doing it twice does nothing."""
        for layer in reversed(self._layers):
            layer.take_off()
        self._layers.clear()

    def __enter__(self) -> IslandHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<{'islands' if self._layers else 'removed islands'}: {', '.join(self.targets)}>"


def island(
    model: nn.Module, names: Sequence[str] | str, *, dtype: torch.dtype = torch.float32, cast_back: bool = True
) -> IslandHandle:
    """Make modules compute in float32 inside autocast and inside a `.half()` or `.bfloat16()` model.

    Inputs, parameters and buffers are cast inside the forward, autocast is off in it, and the result gets the format
    of the inputs again. Parameters stay what they are: their gradients flow back through the cast, optimizers,
    `state_dict`, wrappers (DDP, torch.compile, checkpointing; before or after) and all other modules see no change.
    Islands stay until `remove()`; with activation checkpointing not before backward, which calls the forward again.

    Limits: an argument that the forward changes in place is not changed for the caller, if it had to be cast. In a
    half-precision model a checkpointed *function* inside the island (not a checkpointed module) that reads parameters
    itself finds them narrow again in its recomputation, which torch reports.

    Args:
        model: wrapped or not.
        names: module paths, with or without wrappers' prefixes; globs (`blocks.*.attn`); `"attn:matmul"` for a torch
            function within a module's forward, named as in your code (`matmul` also means `@`).
        dtype: float32; float64 for a reference; bfloat16 instead of float16.
        cast_back: False leaves results in `dtype`, for values that do not fit the narrow format before a norm or a
            division brings them back. Scalar results (losses) are never cast back.

    Raises:
        UnknownNameError: no such module or function; names the nearest.
        ConfigError: a dtype that an island cannot have.
    """
    if dtype not in NARROWER:
        known = ", ".join(str(d).removeprefix("torch.") for d in NARROWER)
        raise ConfigError(
            f"an island cannot compute in {dtype}", where="hypocenter.island(dtype=...)", fix=f"use {known}"
        )
    layers: list[Layer] = []
    targets = resolve(model, names)
    for target in targets:
        if target.functions:
            layers += put_functions(target.module, target.functions, dtype=dtype, cast_back=cast_back)
        else:
            layers += put_module(target.module, dtype=dtype, cast_back=cast_back)
    return IslandHandle(tuple(str(target) for target in targets), layers)


def put_module(module: nn.Module, *, dtype: torch.dtype, cast_back: bool | None) -> list[Layer]:
    """Put one module, with all below it, on an island; return the layers, to take them off again."""
    return _put(WideForward(m, dtype=dtype, cast_back=cast_back, outermost=m is module) for m in module.modules())


def put_functions(module: nn.Module, functions: Sequence[str], *, dtype: torch.dtype, cast_back: bool) -> list[Layer]:
    """Put torch functions within a module's forward on an island; return the layers, to take them off again."""
    return _put(
        OpForward(m, functions, dtype=dtype, cast_back=cast_back, outermost=m is module) for m in module.modules()
    )


def _put(layers: Iterable[Layer]) -> list[Layer]:
    done = list(layers)
    for layer in done:
        layer.put_on()
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One module, or some torch functions within its forward."""

    path: str
    module: nn.Module
    functions: tuple[str, ...] = ()  # empty: the whole module

    def __str__(self) -> str:
        return ", ".join(f"{self.path}:{name}" for name in self.functions) or self.path or "the model"


def resolve(model: nn.Module, names: Sequence[str] | str) -> tuple[Target, ...]:
    """Return the modules for names; one inside another that is named as well is left out.

    Args:
        names: module paths with or without wrappers' prefixes ("" is the model itself), globs (`blocks.*.attn`), each
            with `:function` behind it for a torch function in that module.

    Raises:
        UnknownNameError: no module or no torch function is called that; names the nearest.
    """
    modules = dict(walk(model))  # a wrapper and what it wraps have one name: the innermost comes last
    whole: dict[int, Target] = {}
    functions: dict[int, list[str]] = {}
    part_of: dict[int, Target] = {}
    for name in (names,) if isinstance(names, str) else names:
        pattern, colon, function = name.partition(":")
        for path in _matching(model, modules, pattern, name):
            target = Target(path=path, module=modules[path])
            if colon:
                _check_function(function, name)
                part_of.setdefault(id(target.module), target)
                functions.setdefault(id(target.module), []).append(function)
            else:
                whole.setdefault(id(target.module), target)
    covered = _below(target.module for target in whole.values())
    kept = [target for key, target in whole.items() if key not in covered]
    by_function: dict[str, set[int]] = {}
    for key, called in functions.items():
        for function in called:
            by_function.setdefault(function, set()).update(_below([part_of[key].module]))
    for key, target in part_of.items():
        own = tuple(dict.fromkeys(name for name in functions[key] if key not in by_function[name]))
        if own and key not in covered and key not in whole:
            kept.append(Target(path=target.path, module=target.module, functions=own))
    return tuple(kept)


def _below(modules: Iterable[nn.Module]) -> set[int]:
    return {id(m) for module in modules for m in module.modules() if m is not module}


def _matching(model: nn.Module, modules: Mapping[str, nn.Module], pattern: str, name: str) -> list[str]:
    for spelling in (pattern, strip(pattern, model), strip(pattern), pattern.removeprefix("module.")):
        if spelling in modules:
            return [spelling]
        if found := [path for path in modules if path and fnmatchcase(path, spelling)]:
            return found
    raise UnknownNameError(
        f"the model has no module {pattern!r}",
        where=f"hypocenter.island(model, [{name!r}])",
        why=f"{type(model).__name__} has {len(modules)} modules",
        fix=_nearest(pattern, modules) or "list them with `[name for name, _ in model.named_modules()]`",
    )


def _check_function(function: str, name: str) -> None:
    if not is_function(function):
        raise UnknownNameError(
            f"torch has no function {function!r} that gives a new tensor",
            where=f"hypocenter.island(model, [{name!r}])",
            why="behind the colon stands a torch function as in your code: matmul (also for @), einsum, sum, softmax",
            fix=_nearest(function, function_names()) or "leave the colon out to take the whole module",
        )


def _nearest(typed: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(typed, [name for name in known if name], n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""
