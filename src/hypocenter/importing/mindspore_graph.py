"""The graph that MindSpore writes beside its dumps (`ms_output_trace_code_graph_N.ir`): a text, read line by line.

Of each operator it has the operands, the types that the program sees and those that the device holds, the place in the
program, and in backward the operator of forward that it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from hypocenter.importing.mindspore_names import dtype_of
from hypocenter.importing.text import is_library
from hypocenter.nouns import Source

_AT_MOST_BYTES = 2 << 30
_LINE_AT_MOST = 1 << 20  # bytes; the rest of a longer line (a constant's values) is left out
_MOST_NODES = 2_000_000
_HEAD_AT_MOST = 1 << 16  # characters of an operator's first lines
_TEXT_AT_MOST = 300
_PARAMETER = re.compile(r"(%para\d{1,9}_[^:\s]{1,1000}): (.*)")
_NODE = re.compile(r"%(\w{1,40})\([^)]{0,1000}\) = (?:PrimFunc_)?([\w:.]{1,200})\(")
_RETURN = re.compile(r"Return\(")
_FULL_NAME = re.compile(r"(?:# Fullname with scope|: full_name_with_scope): \((.{1,4096})\)$")
_LINE = re.compile(r"# In file (.{1,1000}?)(?::(\d{1,9})(?:~\d{1,9})?, \d{1,9}~\d{1,9}|\((\d{1,9})\))/(.*)/$")
_KEY = re.compile(r"ref_key=([^,>\s]{1,1000})")
_SHAPE = re.compile(r"\(([\d, ]{0,400})\)")
_DEVICE = re.compile(r"<?([A-Za-z0-9]{1,20}?)x[A-Z]")
_ABSTRACT = re.compile(r"<?(?:Ref\[)?(?:Tensor\[)?([A-Za-z]{1,20}\d{0,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphParameter:
    """A parameter of the graph: of the network or its optimizer, or an input."""

    name: str  # with dots, as the program has it
    is_weight: bool
    dtype: str
    shape: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Node:
    """An operator of the graph."""

    index: int  # among all
    graph: str
    op: str
    operands: tuple[str, ...]  # %5, %para1_x, or a constant's text
    operand_names: tuple[str, ...] = ()
    full_name: str = ""
    types: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # of inputs and outputs, as the program has them
    held: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # as the device holds them; empty when not written
    source: Source | None = None
    via: str = ""  # file of the innermost line, which may be a library's
    identity: str = ""
    identity_of_forward: str = ""
    is_of_backward: bool = False


@dataclass(slots=True, kw_only=True)
class Graph:
    """The parameters and operators in one file."""

    parameters: dict[str, GraphParameter] = field(default_factory=dict)  # by %para
    nodes: dict[tuple[str, str], Node] = field(default_factory=dict)  # by graph and %number


def read_graph(path: Path) -> tuple[Graph, str]:
    """Read a graph; also one line about what could not be read, or "".

    Raises:
        OSError: the file cannot be read.
    """
    if path.stat().st_size > _AT_MOST_BYTES:
        return Graph(), f"{path.name} is left out: it is larger than {_AT_MOST_BYTES >> 30} GiB"
    graph = Graph()
    name, node, head = "", None, ""
    for line in chain(_lines(path), ["}"]):
        text = line.strip()
        if head:
            if not text.startswith((": (", "#")) and text != "}":
                head = f"{head} {text}"[:_HEAD_AT_MOST]
                continue
            node, head = _node(head, name, len(graph.nodes)), ""
            graph.nodes[name, node[0]] = node[1]
        if line.startswith("%para"):
            _parameter(text, graph)
        elif line.startswith("subgraph @"):
            name = text[len("subgraph @") :].partition("(")[0]
        elif text.startswith("%") or _RETURN.match(text):
            if len(graph.nodes) >= _MOST_NODES:
                return graph, f"{path.name}: operators after the first {_MOST_NODES:,} are left out"
            head, node = text[:_HEAD_AT_MOST], None
        elif node is not None:
            _told(node[1], text)
    return graph, "" if graph.nodes or graph.parameters else f"{path.name}: there is no graph in it"


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        while line := file.readline(_LINE_AT_MOST):
            if not line.endswith(b"\n"):
                while (rest := file.readline(_LINE_AT_MOST)) and not rest.endswith(b"\n"):
                    pass
            yield line.decode("utf-8", "replace").rstrip("\r\n")


def _parameter(text: str, graph: Graph) -> None:
    found = _PARAMETER.match(text)
    if found is None:
        return
    about = found[2]
    key, shape = _KEY.search(about), _SHAPE.search(about)
    name = key[1] if key else found[1].partition("_")[2]
    dtype = _ABSTRACT.match(about)
    graph.parameters[found[1]] = GraphParameter(
        name=name, is_weight="IsWeight: true" in about or "is_parameter" in about,
        dtype=dtype_of(dtype[1]) if dtype else "",
        shape=tuple(int(n) for n in shape[1].replace(" ", "").split(",") if n) if shape else (),
    )  # fmt: skip


def _node(head: str, graph: str, index: int) -> tuple[str, Node]:
    found = _NODE.match(head)
    number, op = (found[1], found[2]) if found else ("Return", "Return")
    start = found.end() if found else head.find("(") + 1
    end = _closing(head, start)
    rest = head[end:]
    names = _between(rest, "input_names: [", "]")
    return f"%{number}", Node(
        index=index, graph=graph, op=op.rpartition(":")[2], operands=tuple(_split(head[start:end])),
        operand_names=tuple(n.strip() for n in names.split(",")) if names else (),
        identity=_between(rest, '{unique_id: "', '"') or _between(rest, ', unique_id: "', '"'),
        identity_of_forward=_between(rest, 'forward_unique_id: "', '"'),
    )  # fmt: skip


def _told(node: Node, text: str) -> None:
    """Take over what a line below an operator's first line says of it."""
    if text.startswith(": (") and ") -> (" in text:
        left, _, right = text[2:].partition(") -> (")
        inputs, outputs = _split(left[1:]), _split(right.rstrip()[:-1])
        if any(_DEVICE.match(part) for part in (*inputs, *outputs)):
            node.held = tuple(map(_held, inputs)), tuple(map(_held, outputs))
        elif not any(node.types):
            node.types = tuple(map(_seen, inputs)), tuple(map(_seen, outputs))
    elif (found := _FULL_NAME.match(text)) is not None:
        node.full_name = found[1]
    elif text.startswith("# Corresponding forward node"):
        node.is_of_backward = True
    elif (found := _LINE.match(text)) is not None:
        node.via = found[1]
        if is_library(found[1]):
            return
        code = found[4].strip()
        node.source = Source(
            file=found[1], line=int(found[2] or found[3]), text="" if code == "..." else code[:_TEXT_AT_MOST]
        )


def _held(text: str) -> str:
    found = _DEVICE.match(text)
    return dtype_of(found[1]) if found else ""


def _seen(text: str) -> str:
    found = _ABSTRACT.match(text)
    return dtype_of(found[1]) if found else ""


def _between(text: str, start: str, end: str) -> str:
    at = text.find(start)
    if at < 0:
        return ""
    at += len(start)
    stop = text.find(end, at)
    return text[at:stop] if stop >= 0 else ""


_OPEN, _CLOSE = "([{<", ")]}>"


def _closing(text: str, start: int) -> int:
    """Return where the bracket that was opened before `start` is closed."""
    depth, is_text = 1, False
    for at in range(start, len(text)):
        mark = text[at]
        if mark == '"':
            is_text = not is_text
        elif is_text:
            continue
        elif mark in _OPEN:
            depth += 1
        elif mark in _CLOSE and not (mark == ">" and text[at - 1] == "-"):
            depth -= 1
            if not depth:
                return at
    return len(text)


def _split(text: str) -> list[str]:
    """Split the text at commas that are in no brackets."""
    parts, start, depth, is_text = list[str](), 0, 0, False
    for at, mark in enumerate(text):
        if mark == '"':
            is_text = not is_text
        elif is_text:
            continue
        elif mark in _OPEN:
            depth += 1
        elif mark in _CLOSE:
            depth -= 1
        elif mark == "," and depth <= 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []
