"""Which part of a source line an operator stands for, so that a caret line can point at it."""

from __future__ import annotations

import ast

_BINARY: dict[str, tuple[type[ast.operator], ...]] = {
    "add": (ast.Add,), "sub": (ast.Sub,), "rsub": (ast.Sub,), "mul": (ast.Mult,), "div": (ast.Div, ast.FloorDiv),
    "true_divide": (ast.Div,), "remainder": (ast.Mod,), "pow": (ast.Pow,),
    "matmul": (ast.MatMult,), "mm": (ast.MatMult,), "bmm": (ast.MatMult,), "mv": (ast.MatMult,), "dot": (ast.MatMult,),
}  # fmt: skip
_CALLS: dict[str, tuple[str, ...]] = {
    "mm": ("matmul", "linear"), "bmm": ("matmul", "einsum"), "addmm": ("linear",), "t": ("linear",),
    "_softmax": ("softmax",), "_log_softmax": ("log_softmax", "cross_entropy"), "div": ("divide", "true_divide"),
    "mul": ("multiply", "prod"), "nll_loss_forward": ("nll_loss", "cross_entropy"),
    "_to_copy": ("to", "half", "float", "type"),
    "native_layer_norm": ("layer_norm",), "native_dropout": ("dropout",), "embedding": ("embedding",),
    "linalg_vector_norm": ("norm", "vector_norm"),
}  # fmt: skip


def span(text: str, op: str | None) -> tuple[int, int]:
    """Return the columns [start, stop) of `text` that `op` (`aten.mul.Tensor`) stands for.

    When one expression fits, that one; when none or several do, the whole right-hand side: better wide than wrong.
    """
    start, stripped = len(text) - len(text.lstrip()), text.strip()
    statement = _parse(stripped)
    if statement is None:
        return start, start + len(stripped)
    name = _base(op)
    found = [node for node in ast.walk(statement) if _fits(node, name)]
    node = found[0] if len(found) == 1 else _value(statement)
    first, last = _columns(stripped, node)
    return start + first, start + last


def window(text: str, start: int, stop: int, room: int) -> tuple[str, int, int]:
    """Cut `text` to `room` characters around [start, stop), `…` for what is left out; return it and its columns."""
    if len(text) <= room:
        return text, start, stop
    first = min(max(start - room // 4, 0), len(text) - room)
    head, tail = "…" if first else "", "…" if first + room < len(text) else ""
    shown = head + text[first + len(head) : first + room - len(tail)] + tail
    stop = min(stop - first, len(shown))
    return shown, min(start - first, stop - 1), stop


def _base(op: str | None) -> str:
    parts = (op or "").split(".")
    name = parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims", "torch") else parts[0]
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name


def _parse(text: str) -> ast.stmt | None:
    for candidate in (text, f"{text}\n    pass"):
        try:
            tree = ast.parse(candidate)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if len(tree.body) == 1 and "\n" not in text:
            return tree.body[0]
    return None


def _fits(node: ast.AST, name: str) -> bool:
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        return isinstance(node.op, _BINARY.get(name, ()))
    if isinstance(node, ast.Call):
        called = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        return called is not None and called in (name, *_CALLS.get(name, ()))
    return False


def _value(statement: ast.stmt) -> ast.AST:
    for field in ("value", "test", "iter"):
        node = getattr(statement, field, None)
        if isinstance(node, ast.AST) and not isinstance(statement, ast.AugAssign):
            return node
    return statement


def _columns(text: str, node: ast.AST) -> tuple[int, int]:
    last = getattr(node, "end_col_offset", None)
    if last is None or getattr(node, "end_lineno", 1) != 1:
        return 0, len(text)
    encoded = text.encode()  # ast counts UTF-8 bytes
    first = getattr(node, "col_offset", 0)
    return len(encoded[:first].decode(errors="ignore")), len(encoded[:last].decode(errors="ignore"))
