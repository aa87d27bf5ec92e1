"""The code change for the user's own source, as a unified diff to read. Nothing here writes to it."""

from __future__ import annotations

import ast
import difflib
import io
import re
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypocenter.diagnose.source_text import (
    FLOATING,
    FUNCTIONS,
    MATRIX,
    POSITIONS,
    CannotRewrite,
    Edit,
    Names,
    Operands,
    Place,
    Text,
    applied,
    names_in,
    root_name,
)

How = Literal["forward", "statement"]
LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**",
}  # fmt: skip
Insert = tuple[int, int, str]
"""(line, column in bytes, text)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A change to read: `diff` for `patch -p1` or `git apply`; `words` when there is none, or what it needs beside."""

    diff: str = ""
    words: str = ""


def propose(
    source_path: str | Path,
    lines: Sequence[int],
    how: How,
    *,
    targets: Sequence[str] = (),
    cast_back: bool | None = None,
    floating: Sequence[str] = (),
    below: str | Path | None = None,
    half: bool = False,
) -> Patch:
    """Propose the change that puts code in float32: an `autocast(enabled=False)` block with `.float()` on tensors.

    Args:
        source_path: the user's file.
        lines: counted from 1; for "forward" any line of the function, for "statement" every line to be in float32.
        how: a whole function, whose old body is then called with float32 arguments, or single statements.
        targets: module paths for `hypocenter.island`, which is proposed when there is no diff.
        cast_back: whether the result gets the inputs' format again. By default a function's does, and a statement's
            only in a half-precision model: under autocast the value that overflowed would do so again.
        floating: for "forward", arguments known to be floating-point tensors; others are looked at when called.
        below: folder that the names in the diff are relative to; the working directory when not given.
        half: the model's parameters are in half precision; those of a changed function's module have to leave it.
    """
    path = Path(source_path)
    if is_library(path):
        return Patch(words=f"{path.name} belongs to a library; change it from outside: {api(targets)}")
    try:
        content = path.read_bytes()
        coding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = Text(content.decode(coding))
        if how == "forward":
            edits = whole_function(text, lines[0], floating=floating, cast_back=cast_back is not False)
        else:
            edits = statements(text, lines, cast_back=half if cast_back is None else cast_back)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return Patch(words=f"{path.name} cannot be read ({error}); without a change in it: {api(targets)}")
    except CannotRewrite as error:
        return Patch(words=f"no diff, because {error}; without one: {api(targets)}")
    diff = _diff(text.lines, applied(text, edits), _shown(path, below))
    beside = [_parameters_too(targets)] if half and how == "forward" else []
    if targets and (name := text.class_name(lines[0])):
        beside.append(f"the diff changes every {name}; {api(targets)} only what it names")
    return Patch(diff=diff, words="; ".join(beside))


def api(targets: Sequence[str], *, cast_back: bool = True) -> str:
    """Return the one line that does the same without a change in the module's source."""
    names = ", ".join(f'"{target}"' for target in targets) or "..."
    return f"hypocenter.island(model, [{names}]{'' if cast_back else ', cast_back=False'})"


def _parameters_too(targets: Sequence[str]) -> str:
    modules = "; ".join(f'model.get_submodule("{target}").float()' for target in targets) or "module.float()"
    return f"after `.half()` or `.bfloat16()`, give its parameters float32 back: {modules}"


def is_library(path: Path) -> bool:
    """Return whether a file is installed rather than written by the user."""
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return bool(LIBRARY_FOLDERS & set(path.parts)) or any(path.is_relative_to(folder) for folder in standard if folder)


def _shown(path: Path, below: str | Path | None) -> str:
    folder = Path.cwd() if below is None else Path(below)
    absolute = path.absolute()
    return (absolute.relative_to(folder) if absolute.is_relative_to(folder) else Path(path.name)).as_posix()


def _diff(before: Sequence[str], after: Sequence[str], name: str) -> str:
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def statements(text: Text, lines: Sequence[int], *, cast_back: bool = False) -> list[Edit]:
    """Return edits that put the statements at some lines into float32 blocks; neighbours share one.

    Args:
        cast_back: give each result the format of its first operand.

    Raises:
        CannotRewrite: with the reason.
    """
    places = {place.statement.lineno: place for place in (text.statement(line) for line in sorted(set(lines)))}
    groups: list[list[Place]] = []
    for place in places.values():
        if groups and _follows(place, groups[-1][-1]):
            groups[-1].append(place)
        else:
            groups.append([place])
    return [*text.import_edit(), *(_block(text, group, cast_back) for group in groups)]


def _follows(place: Place, previous: Place) -> bool:
    block = previous.block
    return place.block is block and block.index(place.statement) == block.index(previous.statement) + 1


def _block(text: Text, group: list[Place], cast_back: bool) -> Edit:
    first, last = group[0].statement.lineno, group[-1].last_line
    inserts: list[Insert] = []
    devices: list[str] = []
    for place in group:
        operands = _operands(text, place)
        if not operands:
            raise CannotRewrite(f"line {place.statement.lineno} does not show which of its operands are tensors")
        devices.append(root_name(operands[0]))
        inserts += _casts(place.statement, operands, cast_back)
        if isinstance(place.statement, ast.AugAssign):
            inserts += _assigned(text, place.statement)
    done = _inserted(text, inserts)
    head = f"{text.indent(first)}with {text.torch or 'torch'}.autocast({devices[0]}.device.type, enabled=False):"
    body = (done.get(n, text.lines[n - 1]) for n in range(first, last + 1))
    indented = (f"{text.unit}{line}" if line.strip() else line for line in body)
    return Edit(first=first, last=last, lines=(head + text.newline, *indented))


def _operands(text: Text, place: Place) -> list[ast.expr]:
    names = names_in(place.scope, text.tree)
    visitor = Operands(names)
    value = getattr(place.statement, "value", None)
    if isinstance(value, ast.expr):
        if any(isinstance(node, ast.Constant) and node.lineno != node.end_lineno for node in ast.walk(value)):
            raise CannotRewrite(f"line {place.statement.lineno} holds a text of several lines")
        visitor.visit(value)
        if isinstance(place.statement, ast.AugAssign) and not visitor.found and names.is_tensor(place.statement.target):
            visitor.found.append(place.statement.target)
    return visitor.found


def _casts(statement: ast.stmt, operands: list[ast.expr], cast_back: bool) -> list[Insert]:
    inserts: list[Insert] = [
        (*_end(node), ".float()") for node in operands if node is not getattr(statement, "target", None)
    ]
    if cast_back and isinstance(statement, (ast.Assign, ast.Return)) and statement.value is not None:
        value, ending = statement.value, f".to({root_name(operands[0])}.dtype)"
        if isinstance(value, (ast.Call, ast.Name, ast.Attribute, ast.Subscript)):
            inserts.append((*_end(value), ending))
        else:
            inserts += [(value.lineno, value.col_offset, "("), (*_end(value), ")" + ending)]
    return inserts


def _assigned(text: Text, statement: ast.AugAssign) -> list[Insert]:
    """Return inserts that turn `x += y` into `x = x.float() + (y)`: in place the result would be narrow again."""
    symbol, line = _SYMBOLS.get(type(statement.op)), text.lines[statement.lineno - 1].encode()
    column = line.find(f"{symbol}= ".encode(), statement.target.end_col_offset)
    value = statement.value
    if symbol is None or column < 0 or column > value.col_offset or value.lineno != statement.lineno:
        raise CannotRewrite(f"line {statement.lineno} changes a value in place")
    head = f"{ast.unparse(statement.target)}.float() {symbol} "
    is_simple = isinstance(value, (ast.Call, ast.Name, ast.Attribute, ast.Subscript, ast.Constant))
    return [
        (statement.lineno, column, "\0" * len(symbol)),  # taken out: see `_inserted`
        (value.lineno, value.col_offset, head + ("" if is_simple else "(")),
        *([] if is_simple else [(*_end(value), ")")]),
    ]


def _inserted(text: Text, inserts: list[Insert]) -> dict[int, str]:
    """Return line number -> the line with all its inserts, in order at one place; zeros delete as many bytes."""
    done = {line: text.lines[line - 1].encode() for line, _, _ in inserts}
    order = sorted(enumerate(inserts), key=lambda each: (*each[1][:2], each[0]), reverse=True)
    for _, (line, column, what) in order:
        n_deleted = what.count("\0")
        done[line] = done[line][:column] + what.strip("\0").encode() + done[line][column + n_deleted :]
    return {line: content.decode() for line, content in done.items()}


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def whole_function(text: Text, line: int, *, floating: Sequence[str] = (), cast_back: bool = True) -> list[Edit]:
    """Return edits that make the function at a line call its old body, under another name, in float32.

    Args:
        floating: arguments known to be floating-point tensors; others are looked at when called.
        cast_back: give the result the format of the first such argument.

    Raises:
        CannotRewrite: with the reason.
    """
    function = text.function(line)
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(function)):
        raise CannotRewrite(f"{function.name} is a generator")
    if {ast.unparse(d) for d in function.decorator_list} & {"staticmethod", "classmethod"} or not _positional(function):
        raise CannotRewrite(f"{function.name} is no method with arguments")
    end = _header_end(text, function)
    has_docstring = ast.get_docstring(function) is not None
    if function.body[0].lineno <= end or len(function.body) == has_docstring:
        raise CannotRewrite(f"{function.name} has no body of its own")
    at = (function.body[0].end_lineno or end) + 1 if has_docstring else end + 1
    inner = _inner_name(text, function)
    header = [re.sub(r"\bdef\s+\w+", f"def {inner}", text.lines[function.lineno - 1], count=1)]
    header += text.lines[function.lineno : end]
    lines = [f"{each}{text.newline}" for each in _Wrapper(text, function, frozenset(floating)).lines(inner, cast_back)]
    return [*text.import_edit(), Edit(first=at, last=at - 1, lines=(*lines, text.newline, *header))]


class _Wrapper:
    """Writes the new body of the function."""

    def __init__(self, text: Text, function: ast.FunctionDef, floating: frozenset[str]) -> None:
        self._function, self._names = function, names_in(function, text.tree)
        self._torch, self._unit = text.torch or "torch", text.unit
        self._indent = text.indent(function.lineno) + text.unit
        self._certain = floating | _multiplied(function, self._names)
        positional = _positional(function)
        self._like = next((name for name in positional if name in self._certain), positional[0])

    def lines(self, inner: str, cast_back: bool) -> Iterator[str]:
        """Yield the lines of the body, indented, without line ends."""
        indent, torch, unit = self._indent, self._torch, self._unit
        a = self._function.args
        given = [self._up(name) for name in _positional(self._function)]
        given += [f"*map(up, {a.vararg.arg})"] if a.vararg else []
        given += [f"{arg.arg}={self._up(arg.arg)}" for arg in a.kwonlyargs]
        given += [f"**{{key: up(value) for key, value in {a.kwarg.arg}.items()}}"] if a.kwarg else []
        if any("up(" in each or "map(up" in each for each in given):
            if ast.get_docstring(self._function) is not None:
                yield ""
            yield f"{indent}def up(x):"
            yield f"{indent}{unit}return x.float() if {torch}.is_tensor(x) and x.is_floating_point() else x"
            yield ""
        own = (*a.posonlyargs, *a.args)[0].arg
        yield f"{indent}with {torch}.autocast({self._like}.device.type, enabled=False):"
        yield f"{indent}{unit}{'out =' if cast_back else 'return'} {own}.{inner}({', '.join(given)})"
        if cast_back:
            yield f"{indent}return {self._cast_back()}"

    def _up(self, name: str) -> str:
        return f"{name}.float()" if name in self._certain else f"up({name})"

    def _cast_back(self) -> str:
        nodes = _own_nodes(self._function)
        values = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
        if values and all(self._names.is_tensor(value) for value in values):
            return f"out.to({self._like}.dtype)"
        if values and all(isinstance(value, ast.Tuple) for value in values):
            test = f"{self._torch}.is_tensor(o) and o.is_floating_point()"
            return f"tuple(o.to({self._like}.dtype) if {test} else o for o in out)"
        return f"out.to({self._like}.dtype) if {self._torch}.is_tensor(out) else out"


def _multiplied(function: ast.FunctionDef, names: Names) -> frozenset[str]:
    """Return arguments that the body gives to functions that only take tensors: no indices, masks or None."""
    found: set[str] = set()
    for node in _own_nodes(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.update(root_name(side) for side in (node.left, node.right) if names.is_leaf(side))
        elif isinstance(node, ast.Call) and names.function(node)[1] and names.function(node)[0] in FLOATING:
            name = names.function(node)[0]
            n = None if name == "einsum" else POSITIONS if name in MATRIX else 1
            found.update(root_name(argument) for argument in node.args[:n] if names.is_leaf(argument))
    a = function.args
    optional = {arg.arg for arg in (*a.posonlyargs, *a.args)[len(a.posonlyargs) + len(a.args) - len(a.defaults) :]}
    return frozenset(found) & (frozenset(_positional(function)) - optional)


def _positional(function: ast.FunctionDef) -> list[str]:
    """Return the positional arguments without `self`."""
    return [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)][1:]


def _header_end(text: Text, function: ast.FunctionDef) -> int:
    """Return the number of the last line of the signature."""
    a = function.args
    parts: list[ast.AST] = [*a.posonlyargs, *a.args, *a.kwonlyargs, *a.defaults, *(d for d in a.kw_defaults if d)]
    parts += [part for part in (a.vararg, a.kwarg, function.returns) if part is not None]
    line = max([function.lineno, *(getattr(part, "end_lineno", 0) for part in parts)])
    while line < len(text.lines) and not text.lines[line - 1].split("#")[0].rstrip().endswith(":"):
        line += 1
    return line


def _inner_name(text: Text, function: ast.FunctionDef) -> str:
    taken = {node.name for node in ast.walk(text.tree) if isinstance(node, FUNCTIONS)}
    name = f"_{function.name.strip('_')}_in_float32"
    while name in taken:
        name += "_"
    return name


def _own_nodes(function: ast.FunctionDef) -> list[ast.AST]:
    """Return all nodes of a function's body, without those of functions and classes in it."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return found
