"""A function whose old body is called with float32 arguments and autocast off."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from hypocenter.diagnose.operands import FLOATING, MATRIX, POSITIONS, Names, names_in, root_name
from hypocenter.diagnose.source_text import FUNCTIONS, CannotRewrite, Edit, Text


def whole_function(text: Text, line: int, *, floating: Sequence[str] = (), cast_back: bool = True) -> list[Edit]:
    """Edits that make the function at a line call its old body, under another name, in float32.

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
    """The new body of the function."""

    def __init__(self, text: Text, function: ast.FunctionDef, floating: frozenset[str]) -> None:
        self._function, self._names = function, names_in(function, text.tree)
        self._torch, self._unit = text.torch or "torch", text.unit
        self._indent = text.indent(function.lineno) + text.unit
        self._certain = floating | _multiplied(function, self._names)
        positional = _positional(function)
        self._like = next((name for name in positional if name in self._certain), positional[0])

    def lines(self, inner: str, cast_back: bool) -> Iterator[str]:
        """Its lines, indented, without line ends."""
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
    """Arguments that the body itself gives to such functions as take nothing else: no indices, no masks, not None."""
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
    """Positional arguments without `self`."""
    return [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)][1:]


def _header_end(text: Text, function: ast.FunctionDef) -> int:
    """The last line of the signature."""
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
    """All nodes of a function's body but those of functions and classes within."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return found
