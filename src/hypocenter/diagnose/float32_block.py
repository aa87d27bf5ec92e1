"""Statements in an `autocast(enabled=False)` block, `.float()` at the tensors that they compute with."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from hypocenter.diagnose.operands import Operands, names_in, root_name
from hypocenter.diagnose.source_text import CannotRewrite, Edit, Place, Text

_SYMBOLS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**",
}  # fmt: skip

Insert = tuple[int, int, str]
"""(line, column in bytes, text)"""


def statements(text: Text, lines: Sequence[int], *, cast_back: bool = False) -> list[Edit]:
    """Edits that put the statements at some lines into such blocks; those that follow each other share one.

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
    """`x += y` as `x = x.float() + (y)`: in place the result would be narrow again."""
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
    """Line number -> the line with all of its inserts, in their order at one place; zeros delete as many bytes."""
    done = {line: text.lines[line - 1].encode() for line, _, _ in inserts}
    order = sorted(enumerate(inserts), key=lambda each: (*each[1][:2], each[0]), reverse=True)
    for _, (line, column, what) in order:
        n_deleted = what.count("\0")
        done[line] = done[line][:column] + what.strip("\0").encode() + done[line][column + n_deleted :]
    return {line: content.decode() for line, content in done.items()}


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
