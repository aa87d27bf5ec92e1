"""What the names in `island(model, [...])` mean: modules, globs of modules, ops in modules."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from hypocenter.errors import UnknownNameError
from hypocenter.replay.remedies.op_forward import function_names, is_function
from hypocenter.tap.names import strip, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One module, or some torch functions within its forward."""

    path: str
    module: nn.Module
    functions: tuple[str, ...] = ()  # empty: the whole module

    def __str__(self) -> str:
        return ", ".join(f"{self.path}:{name}" for name in self.functions) or self.path or "the model"


def resolve(model: nn.Module, names: Sequence[str] | str) -> tuple[Target, ...]:
    """Modules for names; one inside another that is named as well is left out.

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
