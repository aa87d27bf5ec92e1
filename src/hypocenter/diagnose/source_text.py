"""A source file as text and tree: statements and functions at a line, and edits of its lines."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Iterable, Iterator, Sequence
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


MATRIX = frozenset(("matmul", "mm", "bmm", "mv", "dot", "inner", "outer", "einsum", "linear", "baddbmm", "addmm"))
"""Functions that multiply: no index and no mask can stand there."""

EVERY_OPERAND = MATRIX | {
    "bilinear", "addbmm", "addmv", "cdist", "cosine_similarity", "cat", "stack", "conv1d", "conv2d", "conv3d",
    "scaled_dot_product_attention", "mse_loss", "l1_loss", "tensordot", "kron", "cross", "dist", "vdot", "hypot",
}  # fmt: skip
"""Functions that compute with their first three arguments (einsum: all). Of the others it is the first alone."""

NO_OPERAND = frozenset(
    ("embedding", "one_hot", "arange", "zeros", "ones", "full", "empty", "tensor", "randperm", "where", "is_tensor",
     "finfo", "device", "Size")
)  # fmt: skip
"""Functions whose arguments must not be cast, or are none: indices, conditions, sizes."""

VIEWS = frozenset(
    ("view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as",
     "contiguous", "t", "movedim", "swapaxes", "narrow", "select", "to", "float", "double", "detach", "clone", "repeat")
)  # fmt: skip
"""Methods that compute nothing: the cast goes behind them."""

METHODS = MATRIX | {
    "sum", "mean", "prod", "norm", "std", "var", "softmax", "log_softmax", "pow", "square", "sqrt", "rsqrt", "exp",
    "log", "abs", "sigmoid", "tanh", "relu", "cumsum", "cumprod", "logsumexp", "amax", "amin", "masked_fill", "clamp",
    "reciprocal", "div", "mul", "add", "sub",
}  # fmt: skip
"""Methods that compute, and that nothing but a tensor has as a rule."""

ATTRIBUTES = frozenset(("shape", "dtype", "device", "size", "dim", "ndim", "T", "mT", "numel")) | VIEWS | METHODS
"""What has one of these is a tensor."""

NO_TENSOR = frozenset(("size", "dim", "numel", "item", "tolist", "split", "chunk", "unbind", "is_floating_point"))
"""Methods whose result is no tensor."""

FLOATING = MATRIX | {
    "softmax", "log_softmax", "elu", "gelu", "silu", "relu", "leaky_relu", "sigmoid", "tanh", "softplus", "layer_norm",
    "rms_norm", "normalize", "scaled_dot_product_attention",
}  # fmt: skip
"""torch functions whose first arguments are floating-point tensors: no index, no mask, not None."""

TYPES = frozenset(("Tensor", "torch.Tensor", "torch.FloatTensor"))

POSITIONS = 3  # of an EVERY_OPERAND function that are tensors: what follows are strides, masks, options


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What is known of the names in a function: tensors, modules that are torch's, and other modules."""

    tensors: frozenset[str] = frozenset()
    torch: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()

    def function(self, node: ast.Call) -> tuple[str, bool]:
        """Return (name, whether it is torch's) of a function that is called; a method is not torch's."""
        if isinstance(node.func, ast.Attribute):
            root = _root(node.func.value)
            return node.func.attr, isinstance(root, ast.Name) and root.id in self.torch
        return (node.func.id if isinstance(node.func, ast.Name) else ""), False

    def receiver(self, node: ast.Call) -> ast.expr | None:
        """Return the tensor whose method is called; None for a function, a module's forward and any other method."""
        if not isinstance(node.func, ast.Attribute):
            return None
        root = _root(node.func.value)
        if isinstance(root, ast.Name) and root.id in self.torch | self.modules:
            return None
        is_one = node.func.attr in METHODS | VIEWS or self.is_tensor(node.func.value)
        is_self = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
        return node.func.value if is_one and not is_self else None

    def is_tensor(self, node: ast.expr) -> bool:
        """Return whether an expression is certainly a tensor."""
        if isinstance(node, ast.Name):
            return node.id in self.tensors
        if isinstance(node, ast.Attribute):
            return ast.unparse(node) in self.tensors or (node.attr in ("T", "mT") and self.is_tensor(node.value))
        if isinstance(node, ast.Subscript):
            return self.is_tensor(node.value)
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.MatMult) or self.is_tensor(node.left) or self.is_tensor(node.right)
        if isinstance(node, ast.Call):
            name, is_torch = self.function(node)
            receiver = self.receiver(node)
            if is_torch:
                return name not in NO_TENSOR | {"is_tensor", "finfo", "device", "Size"}
            return receiver is not None and name not in NO_TENSOR and name[:1].islower()
        return False

    def is_leaf(self, node: ast.expr) -> bool:
        """Return whether it computes nothing itself: a name, an attribute, an element, a view of one, a constant."""
        if isinstance(node, ast.Call):
            receiver = self.receiver(node)
            return receiver is not None and self.function(node)[0] in VIEWS and self.is_leaf(receiver)
        return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant))


class Operands(ast.NodeVisitor):
    """Collects in `found` the expressions to cast, none within another, in the order of the text."""

    def __init__(self, names: Names) -> None:
        self.found: list[ast.expr] = []
        self._names = names

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Collect operands: both sides of `@` are tensors; of other operators those that are known to be."""
        for side in (node.left, node.right):
            self._operand(side, certain=isinstance(node.op, ast.MatMult))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Collect the operand of `-x`, if it is known to be a tensor."""
        self._operand(node.operand, certain=False)

    def visit_Call(self, node: ast.Call) -> None:
        """Collect operands of a torch function or a tensor's method, and known tensors given to anything else."""
        name, is_torch = self._names.function(node)
        receiver = self._names.receiver(node)
        if name in NO_OPERAND and is_torch:
            return
        if receiver is not None:
            self._operand(receiver, certain=True)
        every = name in EVERY_OPERAND and (is_torch or receiver is not None)
        if receiver is not None and not every:
            return
        for position, argument in enumerate(node.args):
            is_one = (every and (position < POSITIONS or name == "einsum")) or (is_torch and position == 0)
            self._operand(argument, certain=is_one)
        for keyword in node.keywords:
            self._operand(keyword.value, certain=False)

    def _operand(self, node: ast.expr, *, certain: bool) -> None:
        if isinstance(node, (ast.List, ast.Tuple)):
            for element in node.elts:
                self._operand(element, certain=certain)
        elif isinstance(node, (ast.Constant, ast.Starred)):
            return
        elif self._names.is_leaf(node):
            if certain or self._names.is_tensor(node):
                self.found.append(node)
        else:
            self.visit(node)


def names_in(scope: ast.AST, tree: ast.Module) -> Names:
    """Return what a function (or a file's own code) shows about its names.

    A tensor has a shape, is multiplied with `@`, is annotated as one, or comes from a torch function or from another
    tensor.
    """
    torch, modules = _imported(tree)
    known = Names(torch=torch, modules=modules)
    for _ in range(8):  # a name may depend on one that is known only later; chains in a forward are short
        tensors = known.tensors | {name for node in ast.walk(scope) for name in _shown_by(node, known)}
        if tensors == known.tensors:
            break
        known = Names(tensors=tensors, torch=torch, modules=modules)
    return known


def _shown_by(node: ast.AST, known: Names) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
        root = _root(node.value)
        is_variable = isinstance(root, ast.Name) and root.id not in known.torch | known.modules
        if is_variable and isinstance(node.value, (ast.Name, ast.Attribute)) and ast.unparse(node.value) != "self":
            yield ast.unparse(node.value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield from (side.id for side in (node.left, node.right) if isinstance(side, ast.Name))
    elif isinstance(node, ast.Call) and known.function(node)[1] and known.function(node)[0] in MATRIX:
        yield from (argument.id for argument in node.args[:POSITIONS] if isinstance(argument, ast.Name))
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        if known.is_tensor(node.value):
            yield node.targets[0].id
    elif isinstance(node, ast.arg) and node.annotation is not None and ast.unparse(node.annotation) in TYPES:
        yield node.arg


def _imported(tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of torch and its modules, and those of all other imports."""
    torch, others = {"torch", "F"}, set[str]()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            origin = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                (torch if (origin or alias.name).partition(".")[0] == "torch" else others).add(bound)
    return frozenset(torch), frozenset(others - torch)


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def root_name(node: ast.expr) -> str:
    """Return the variable at the root of an operand, which can be asked for its device and format."""
    while isinstance(node, (ast.Call, ast.Subscript, ast.Attribute)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            break
        node = node.func if isinstance(node, ast.Call) else node.value
    return ast.unparse(node)
