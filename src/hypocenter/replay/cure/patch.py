"""The cure as a change of the user's own source: a diff to read, and what it does beyond the modules that need it."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hypocenter.diagnose.evidence import Cure
from hypocenter.diagnose.patch import Patch, api, propose
from hypocenter.nouns import Source
from hypocenter.replay.cure.islands import Module
from hypocenter.replay.cure.rehearsal import Around, Rehearsal
from hypocenter.replay.remedies.layer import Layer
from hypocenter.tap.names import unwrap, walk

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
HALF = (torch.float16, torch.bfloat16)
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A diff that was replayed, or could not be (verified False), or the words why there is none."""

    diff: str = ""
    words: str = ""
    verified: bool = False


def change_of(cure: Cure, module: Module, rehearsal: Rehearsal, roots: Sequence[torch.nn.Module]) -> Change:
    """Return a change of the statement if it alone suffices, else of the forward of each target's class.

    A diff with which the replayed step is not finite is never shown.

    Args:
        cure: with targets and, where they suffice, lines.
        module: module path -> module.
        rehearsal: of the step.
        roots: the models.
    """
    half = any(parameter.dtype in HALF for root in roots for parameter in root.parameters())
    untried, failed = Change(), ""
    for made in (_statement(cure, half), _forwards(cure, module, half)):
        if not any(patch.diff for _, patch in made):
            untried = untried if untried.words else Change(words=_words(made, cure.targets))
            continue
        diff = "".join(dict.fromkeys(patch.diff for _, patch in made))  # each once: targets may be of one class
        if rehearsal.holds(_around(roots, made)):
            return Change(diff=diff, words=_words(made, cure.targets), verified=True)
        if rehearsal.error.startswith(CannotTry.__name__) or half:  # half: parameters have to be made float32 beside
            untried = untried if untried.diff else Change(diff=diff, words=_words(made, cure.targets))
        else:
            failed = rehearsal.error or "loss or gradients were not finite"
    if untried.diff or not failed:
        return untried
    return Change(words=f"no diff: the one that was made did not pass the replay ({failed})")


Made = Sequence[tuple[str, Patch]]
"""Files, and what is to be changed in them."""


def _statement(cure: Cure, half: bool) -> Made:
    if not cure.lines:
        return ()
    line = cure.lines[0]
    # results stay float32, as they did in the replay that verified the line
    change = propose(line.file, (line.line,), "statement", targets=cure.targets, cast_back=False, half=half)
    return ((line.file, change),)


def _forwards(cure: Cure, module: Module, half: bool) -> Made:
    made: list[tuple[str, Patch]] = []
    for path in cure.targets:
        target = module(path)
        source = forward_source(target) if target is not None else None
        if source is not None:
            cast_back, place = cure.cast_back, (source.line,)
            change = propose(source.file, place, "forward", targets=cure.targets, cast_back=cast_back, half=half)
            made.append((source.file, change))
    return made


def _words(made: Made, targets: Sequence[str]) -> str:
    """Return what is to be said beside the diffs; the line of Python that they name is called "the line above"."""
    said = (patch.words.replace(api(targets), "the line above") for _, patch in made if patch.words)
    return "; ".join(dict.fromkeys(said))


def _around(roots: Sequence[torch.nn.Module], made: Made) -> Around:
    @contextlib.contextmanager
    def around() -> Generator[None, None, None]:
        with contextlib.ExitStack() as stack:
            for file, diff in dict.fromkeys((file, patch.diff) for file, patch in made if patch.diff):
                stack.enter_context(patched(roots, file, diff))
            yield

    return around


def api_lines(targets: Sequence[str], *, cast_back: bool, module: Module, roots: Sequence[torch.nn.Module]) -> str:
    """Return the cure as Python: one `hypocenter.island` per model, each with names as that model has them.

    The only model is called `model`, others (a loss that is a module) by their class.
    """
    lines: list[str] = []
    left = list(targets)
    for root in roots:
        names = {id(unwrap(m)): name for name, m in walk(root)}
        mine = [path for path in left if (m := module(path)) is not None and id(unwrap(m)) in names]
        if mine:
            inside = [names[id(unwrap(m))] for path in mine if (m := module(path)) is not None]
            variable = "model" if inside == mine else _CAMEL.sub("_", type(unwrap(root)).__name__).lower()
            lines.append(api(inside, cast_back=cast_back).replace("island(model,", f"island({variable},", 1))
            left = [path for path in left if path not in mine]
    return "\n".join(lines)


def forward_source(module: nn.Module) -> Source | None:
    """Return file and first line of the forward (its first decorator, if any); None for code that is in no file."""
    function = vars(module).get("forward")
    while isinstance(function, Layer):
        function = function.inner
    function = inspect.unwrap(function if function is not None else type(module).forward)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return None
    return Source(file=code.co_filename, line=code.co_firstlineno, function=code.co_name)


class CannotTry(Exception):
    """Raised where the change is not in the methods of a module's class, so it cannot be tried; says why."""


@contextlib.contextmanager
def patched(roots: Sequence[torch.nn.Module], file: str, diff: str) -> Generator[None, None, None]:
    """Give the classes of the models' modules the methods of the diff, within this block.

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
    """Apply a unified diff to exactly the text that it was made from."""
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
