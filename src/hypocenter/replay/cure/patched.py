"""Modules as they would be with a diff applied to their source: to replay the diff before a person is shown it."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


class CannotTry(Exception):
    """The change is not in the methods of a module's class, so it cannot be put in place here; the message says why."""


@contextlib.contextmanager
def patched(roots: Sequence[torch.nn.Module], file: str, diff: str) -> Generator[None, None, None]:
    """Within this block the classes of the models' modules have the methods that the diff gives them.

    Args:
        roots: the models.
        file: the source file that the diff is of.
        diff: unified, of this one file as it is.

    Raises:
        CannotTry: none of the changed functions is a method of such a class.
    """
    replaced: list[tuple[type, str, Any]] = []
    try:
        for kind, methods in _changed(roots, file, diff):
            for name, method in methods.items():
                replaced.append((kind, name, vars(kind).get(name)))
                setattr(kind, name, method)
        if not replaced:
            raise CannotTry("the change is outside the methods of the model's modules")
        yield
    finally:
        for kind, name, method in reversed(replaced):
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def _changed(roots: Sequence[torch.nn.Module], file: str, diff: str) -> Iterator[tuple[type, dict[str, Any]]]:
    before = Path(file).read_text(encoding="utf-8")
    old, new = ast.parse(before), ast.parse(applied(before, diff))
    for kind in {type(module) for root in roots for module in root.modules()}:
        with contextlib.suppress(TypeError, OSError):  # made at run time
            if inspect.getsourcefile(kind) == file:
                methods = _methods(new, kind.__qualname__)
                known = {name: ast.dump(method) for name, method in _methods(old, kind.__qualname__).items()}
                changed = {name: m for name, m in methods.items() if ast.dump(m) != known.get(name)}
                if changed:
                    yield kind, {name: _compiled(m, kind, file) for name, m in changed.items()}


def _methods(tree: ast.Module, qualname: str) -> dict[str, ast.FunctionDef]:
    body: list[ast.stmt] = tree.body
    for part in qualname.split("."):
        found = next((n for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name == part), None)
        if found is None:
            return {}
        body = found.body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def _compiled(method: ast.FunctionDef, kind: type, file: str) -> Any:
    module = ast.Module(body=[method], type_ignores=[])
    made: dict[str, Any] = {}
    exec(compile(module, file, "exec"), vars(sys.modules[kind.__module__]), made)  # the user's own code, with our casts
    return made[method.name]


def applied(before: str, diff: str) -> str:
    """The text with a unified diff applied that was made from exactly this text."""
    lines, after, at = before.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if match := _HUNK.match(line):
            start = int(match[1]) - (match[2] != "0")
            after += lines[at:start]
            at = start
        elif line.startswith("+"):
            after.append(line[1:])
        elif line.startswith("-"):
            at += 1
        elif line.startswith(" "):
            after.append(lines[at])
            at += 1
    return "".join([*after, *lines[at:]])
