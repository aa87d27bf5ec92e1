"""A source file as text and tree: statements and functions at a line, and edits of its lines."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypocenter.unwarned import unwarned

SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class CannotRewrite(Exception):
    """The code cannot be rewritten; the message says why, in the reader's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A simple statement, the block that it stands in, and the function (or file) around."""

    statement: ast.stmt
    block: Sequence[ast.stmt]
    scope: ast.AST

    @property
    def last_line(self) -> int:
        """The number of the last line of the statement, counted from 1."""
        return self.statement.end_lineno or self.statement.lineno


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Lines [first, last] (from 1) become `lines`; last == first - 1 inserts before `first`."""

    first: int
    last: int
    lines: tuple[str, ...]


class Text:
    """A source file: its lines, its syntax tree, how it indents and what it calls torch."""

    def __init__(self, text: str) -> None:
        self.lines = io.StringIO(text, newline="").readlines()  # str.splitlines also splits at form feeds
        self.newline = "\r\n" if self.lines and self.lines[0].endswith("\r\n") else "\n"
        try:
            with unwarned():  # of escapes in the user's texts
                self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CannotRewrite(f"the file does not parse: {error}") from None

    @property
    def unit(self) -> str:
        """One level of indentation."""
        inner = (line for line in self.lines if line[:1] in " \t" and line.strip())
        lead = next((re.match(r"\s+", line) for line in inner), None)
        return "\t" if lead is not None and lead.group().startswith("\t") else "    "

    @property
    def torch(self) -> str:
        """The name under which torch is imported; "" when it is not."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    if name.name == "torch":
                        return name.asname or "torch"
        return ""

    def import_edit(self) -> list[Edit]:
        """Return an edit that adds `import torch` behind the file's first imports; [] when it is there."""
        if self.torch:
            return []
        imports = [node for node in self.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        line = (imports[-1].end_lineno or 0) + 1 if imports else 1
        return [Edit(first=line, last=line - 1, lines=(f"import torch{self.newline}",))]

    def indent(self, line: int) -> str:
        """Return the white space in front of a line."""
        text = self.lines[line - 1]
        return text[: len(text) - len(text.lstrip())]

    def function(self, line: int) -> ast.FunctionDef:
        """Return the innermost function around a line (decorators included). Raises CannotRewrite without one."""
        inside = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, FUNCTIONS)
            and min([node.lineno, *(d.lineno for d in node.decorator_list)]) <= line <= (node.end_lineno or 0)
        ]
        if not inside:
            raise CannotRewrite(f"line {line} is in no function")
        found = max(inside, key=lambda node: node.lineno)
        if isinstance(found, ast.AsyncFunctionDef):
            raise CannotRewrite(f"{found.name} is a coroutine")
        return found

    def class_name(self, line: int) -> str:
        """Return the name of the innermost class around a line; "" for none."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))
        inside = [node for node in nodes if node.lineno <= line <= (node.end_lineno or 0)]
        return max(inside, key=lambda node: node.lineno).name if inside else ""

    def statement(self, line: int) -> Place:
        """Return the simple statement at a line. Raises CannotRewrite when it is not alone on its lines."""
        scope, block, found = self._innermost(line)
        if not isinstance(found, SIMPLE):
            kind = type(found).__name__.removesuffix("Def").lower()
            raise CannotRewrite(f"line {line} is no statement of its own but part of `{kind}`")
        first, last = self.lines[found.lineno - 1], self.lines[(found.end_lineno or found.lineno) - 1]
        before = first.encode()[: found.col_offset].strip()
        behind = last.encode()[found.end_col_offset :].strip()
        if before or (behind and not behind.startswith(b"#")):
            raise CannotRewrite(f"line {line} holds more than one statement")
        return Place(statement=found, block=block, scope=scope)

    def _innermost(self, line: int) -> tuple[ast.AST, list[ast.stmt], ast.stmt]:
        scope: ast.AST = self.tree
        block, found = self.tree.body, None
        while True:
            inside = [s for s in block if s.lineno <= line <= (s.end_lineno or s.lineno)]
            if not inside:
                break
            found = inside[0]
            scope = found if isinstance(found, FUNCTIONS) else scope
            deeper = [b for b in _blocks(found) if any(s.lineno <= line <= (s.end_lineno or 0) for s in b)]
            if not deeper:
                return scope, block, found
            block = deeper[0]
        if found is None:
            raise CannotRewrite(f"there is no statement at line {line}")
        return scope, block, found


def applied(text: Text, edits: Iterable[Edit]) -> list[str]:
    """Return the lines with the edits made."""
    done = list(text.lines)
    for edit in sorted(edits, key=lambda e: e.first, reverse=True):
        done[edit.first - 1 : edit.last] = edit.lines
    return done


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    found = [b for name in ("body", "orelse", "finalbody") if isinstance(b := getattr(node, name, None), list) and b]
    found += [handler.body for handler in getattr(node, "handlers", [])]
    found += [case.body for case in getattr(node, "cases", [])]
    return found
