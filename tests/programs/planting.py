"""One statement written into an ordinary program, so that a value goes bad at a known step and line.

A line of a program that ends in `# plant: NAME` is a place: the statement follows it and spoils the variable that the
line assigns, or the one that is written after NAME. `# turn` marks where a training step begins: a loop or a function
whose body is a step, with `# turn: CONDITION` only when that holds. The statement asks for the step and keeps no count
of its own, so that it does the same when the step is done again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

PLACE = re.compile(r"# plant: (\S+)(?: (\w+))?$")
TURN = re.compile(r"# turn(?:: (.+))?$")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A way of going bad: what replaces `{v}`, and what must be said of it (operator, causes that are right)."""

    name: str
    statement: str
    op: str
    causes: tuple[str, ...]


KINDS = (
    Kind(name="zero", statement="{v} * 0 / ({v} - {v})", op="div", causes=("division-by-zero",)),
    Kind(name="log", statement="{v} + torch.log({v} * 0)", op="log", causes=("log-of-zero",)),
    Kind(name="sqrt", statement="{v} + torch.sqrt(-1 - {v} * {v})", op="sqrt", causes=("out-of-domain",)),
    Kind(
        name="half",
        statement="{v} + (torch.tanh({v}).half() + 60000.0) * 2.0",
        op="mul",
        causes=("format-overflow",),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a statement may be written."""

    name: str
    variable: str
    line: int  # of the statement that it follows: its last line, from 1
    indent: int


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A program with the fault in it, and the line of the fault."""

    text: str
    line: int


def places(text: str) -> list[Place]:
    """The places of a program, in the order of its lines."""
    found: list[Place] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if match := PLACE.search(line):
            statement = _statement(text, number)
            variable = match[2] or _assigned(statement)
            end = statement.end_lineno or number
            found.append(Place(name=match[1], variable=variable, line=end, indent=statement.col_offset))
    return found


def planted(text: str, place: Place, kind: Kind, step: int) -> Planted:
    """The program in which `kind` happens at `place` in step `step`."""
    condition = " " * place.indent + f"if turn[0] == {step}:"
    fault = " " * (place.indent + 4) + f"{place.variable} = {kind.statement.format(v=place.variable)}"
    insertions = [*_turns(text), (place.line, [condition, fault])]
    written = _written(text, insertions)
    return Planted(text=written, line=written.splitlines().index(fault) + 1)


def watched(text: str, note: str) -> str:
    """The program that calls `note(NAME of the place, its turn)` whenever it comes to a place. `note` is a statement
    that defines it."""
    calls = [(p.line, [" " * p.indent + f"note({p.name!r}, turn[0])"]) for p in places(text)]
    return _written(text, [*_turns(text), *calls], first=note)


def _turns(text: str) -> list[tuple[int, list[str]]]:
    """Lines that count the steps, and after which line each stands."""
    found: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if match := TURN.search(line):
            first = _statement(text, number).body[0]  # type: ignore[attr-defined]  # a loop or a function
            count = " " * first.col_offset + (f"if {match[1]}: turn[0] += 1" if match[1] else "turn[0] += 1")
            found.append((first.lineno - 1, [count]))
    return found


def _written(text: str, insertions: Sequence[tuple[int, list[str]]], first: str = "") -> str:
    """The text with lines inserted after those numbers, and the counter of steps after its docstring."""
    docstring = ast.parse(text).body[0].end_lineno or 1
    after: dict[int, list[str]] = {docstring: ["turn = [-1]", *filter(None, [first])]}
    for number, lines in insertions:
        after.setdefault(number, []).extend(lines)
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        lines += [line, *after.get(number, [])]
    return "\n".join(lines) + "\n"


def _statement(text: str, line: int) -> ast.stmt:
    """The innermost statement that has this line."""
    nodes = [
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return max(nodes, key=lambda node: (node.lineno, node.col_offset))


def _assigned(statement: ast.stmt) -> str:
    """The name that an assignment binds."""
    assert isinstance(statement, ast.Assign), ast.unparse(statement)
    (target,) = statement.targets
    assert isinstance(target, ast.Name), ast.unparse(statement)
    return target.id
