"""JSON, YAML and TOML as one tree in which every value knows its line; hostile files end in one error."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypocenter.checklist.checklist import ConfigurationError, Entry, Scalar
from hypocenter.toml import tomllib

_AT_MOST_NODES = 200_000
_DEPTH = 60
_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_JSON_ATOM = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|-?Infinity|NaN")
_SECTION = re.compile(r"^\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


@dataclass(slots=True, kw_only=True)
class Node:
    """A value: a scalar, a mapping or a sequence. `line` counts from 1; 0 when it is not known."""

    line: int = 0
    scalar: Scalar = None
    mapping: dict[str, Node] = field(default_factory=dict[str, "Node"])
    sequence: list[Node] = field(default_factory=list["Node"])
    kind: str = "scalar"
    repeated: list[tuple[str, Node]] = field(default_factory=list["tuple[str, Node]"])


def parse(text: str, path: Path) -> Node | None:
    """Read the tree of a text, by its form and the file's suffix; None when it is no JSON, YAML or TOML.

    Raises:
        ConfigurationError: it has the suffix of one of them and is damaged; names the line.
    """
    suffix = path.suffix.lower()
    if suffix == ".toml":
        return _toml(text, path)
    if suffix == ".json" or text.lstrip()[:1] == "{":
        return _Json(text, path).read()
    if suffix in (".yaml", ".yml"):
        return _yaml(text, path)
    return None


def entries(node: Node, name: str, separator: str = ": ", prefix: str = "") -> Iterator[Entry]:
    """Yield all leaves with dotted keys; a sequence of scalars is one leaf. `name`: of the file, for places."""
    if node.kind == "mapping" and (node.mapping or not prefix):
        for key, inner in [*node.repeated, *node.mapping.items()]:
            yield from entries(inner, name, separator, f"{prefix}.{key}" if prefix else key)
    elif node.kind == "sequence" and any(inner.kind != "scalar" for inner in node.sequence):
        for i, inner in enumerate(node.sequence):
            yield from entries(inner, name, separator, f"{prefix}[{i}]")
    else:
        value = tuple(inner.scalar for inner in node.sequence) if node.kind == "sequence" else node.scalar
        shown = {"sequence": str(list(value)) if isinstance(value, tuple) else "[]", "mapping": "{}"}
        spelled = f"{prefix}{separator}{shown.get(node.kind, _shown(node.scalar))}"
        yield Entry(key=prefix, value=value, spelled=spelled, where=f"{name}:{node.line}" if node.line else name)


def _shown(value: Scalar) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= 200 else text[:200] + "…"


def _error(path: Path, line: int, why: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"not {what}", where=f"{path}:{line}" if line else str(path), why=why[:300],
        fix="mend the file, or give the one that the program reads",
    )  # fmt: skip


class _Json:
    """A reader of JSON that keeps lines; a key that stands there twice is kept as a repeated one."""

    def __init__(self, text: str, path: Path) -> None:
        self.text, self.path, self.n = text, path, 0
        self.breaks = [match.start() for match in re.finditer("\n", text)]

    def read(self) -> Node:
        at = self._space(0)
        node, at = self._value(at, 0)
        if self._space(at) != len(self.text):
            raise self._bad(at, "something stands behind the end")
        return node

    def _value(self, at: int, depth: int) -> tuple[Node, int]:
        self.n += 1
        if depth > _DEPTH or self.n > _AT_MOST_NODES:
            raise self._bad(at, "nested too deep" if depth > _DEPTH else f"more than {_AT_MOST_NODES:,} values")
        char = self.text[at : at + 1]
        if char == "{":
            return self._object(at, depth)
        if char == "[":
            return self._array(at, depth)
        if char == '"':
            value, end = self._string(at)
            return Node(scalar=value, line=self._line(at)), end
        match = _JSON_ATOM.match(self.text, at)
        if match is None:
            raise self._bad(at, f"{self.text[at : at + 20]!r} is no value")
        try:
            return Node(scalar=json.loads(match[0]), line=self._line(at)), match.end()
        except ValueError as error:  # an integer of more digits than Python reads
            raise self._bad(at, str(error)) from error

    def _object(self, at: int, depth: int) -> tuple[Node, int]:
        node = Node(kind="mapping", line=self._line(at))
        at = self._space(at + 1)
        while self.text[at : at + 1] != "}":
            if self.text[at : at + 1] != '"':
                raise self._bad(at, "a key in double quotes is expected")
            start = at
            key, at = self._string(at)
            at = self._space(at)
            if self.text[at : at + 1] != ":":
                raise self._bad(at, "a colon is expected")
            inner, at = self._value(self._space(at + 1), depth + 1)
            inner.line = self._line(start)
            if key in node.mapping:
                node.repeated.append((key, node.mapping.pop(key)))
            node.mapping[key] = inner
            at = self._next(at, "}")
        return node, at + 1

    def _array(self, at: int, depth: int) -> tuple[Node, int]:
        node = Node(kind="sequence", line=self._line(at))
        at = self._space(at + 1)
        while self.text[at : at + 1] != "]":
            inner, at = self._value(at, depth + 1)
            node.sequence.append(inner)
            at = self._next(at, "]")
        return node, at + 1

    def _next(self, at: int, end: str) -> int:
        at = self._space(at)
        if self.text[at : at + 1] == ",":
            after = self._space(at + 1)
            if self.text[after : after + 1] == end:
                raise self._bad(at, "a comma before the closing bracket")
            return after
        if self.text[at : at + 1] != end:
            raise self._bad(at, f"a comma or {end!r} is expected")
        return at

    def _string(self, at: int) -> tuple[str, int]:
        try:
            return json.decoder.scanstring(self.text, at + 1, True)  # type: ignore[attr-defined]
        except ValueError as error:
            raise self._bad(at, str(error)) from error

    def _space(self, at: int) -> int:
        match = _JSON_SPACE.match(self.text, at)
        return match.end() if match else at

    def _line(self, at: int) -> int:
        return bisect.bisect_left(self.breaks, at) + 1

    def _bad(self, at: int, why: str) -> ConfigurationError:
        return _error(self.path, self._line(min(at, len(self.text))), why, "JSON")


def _yaml(text: str, path: Path) -> Node | None:
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        try:
            top = loader.get_single_node()
            return None if top is None else _Yaml(loader, path).node(top, 0)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _error(path, mark.line + 1 if mark else 0, error.problem or error.context or "", "YAML") from error
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise _error(path, 0, f"{type(error).__name__}: {error}", "YAML") from error


class _Yaml:
    """Reads YAML by PyYAML's safe loader, which builds nothing but plain values."""

    def __init__(self, loader: Any, path: Path) -> None:
        self.loader, self.path, self.n = loader, path, 0

    def node(self, found: Any, depth: int) -> Node:
        import yaml

        self.n += 1
        line = found.start_mark.line + 1
        if depth > _DEPTH or self.n > _AT_MOST_NODES:  # aliases of aliases unfold without end
            why = "nested too deep" if depth > _DEPTH else f"it unfolds to more than {_AT_MOST_NODES:,} values"
            raise _error(self.path, line, why, "YAML that can be read")
        if isinstance(found, yaml.MappingNode):
            return self._mapping(found, line, depth)
        if isinstance(found, yaml.SequenceNode):
            inner = [self.node(part, depth + 1) for part in found.value]
            return Node(kind="sequence", line=line, sequence=inner)
        value = self.loader.construct_object(found)
        is_plain = isinstance(value, (bool, int, float, str)) or value is None
        return Node(scalar=value if is_plain else str(found.value), line=line)

    def _mapping(self, found: Any, line: int, depth: int) -> Node:
        node = Node(kind="mapping", line=line)
        own = {id(key) for key, _ in found.value}
        self.loader.flatten_mapping(found)  # what `<<: *base` brings comes first, and the mapping's own keys win
        said: set[str] = set()
        for key, value in found.value:
            inner = self.node(value, depth + 1)
            inner.line = key.start_mark.line + 1
            name = str(key.value)
            earlier = node.mapping.pop(name, None)
            if earlier is not None and name in said:
                node.repeated.append((name, earlier))
            if id(key) in own:
                said.add(name)
            node.mapping[name] = inner
        return node


def _toml(text: str, path: Path) -> Node:
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        match = re.search(r"at line (\d+)", str(error))
        raise _error(path, int(match[1]) if match else 0, str(error), "TOML") from error
    return _of_values(values, _toml_lines(text), "")


def _of_values(value: Any, lines: dict[str, int], path: str) -> Node:
    line = lines.get(path, 0)
    if isinstance(value, dict):
        inner = {
            str(key): _of_values(part, lines, f"{path}.{key}" if path else str(key)) for key, part in value.items()
        }
        return Node(kind="mapping", line=line, mapping=inner)
    if isinstance(value, list):
        return Node(kind="sequence", line=line, sequence=[_of_values(part, lines, path) for part in value])
    is_plain = isinstance(value, (bool, int, float, str))
    return Node(scalar=value if is_plain else str(value), line=line)


def _toml_lines(text: str) -> dict[str, int]:
    """Return the lines of keys by dotted path; in a quoted text of several lines one may look like a key."""
    found: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _SECTION.match(line):
            section = _unquoted(match[1])
        elif match := _KEY.match(line):
            found.setdefault(f"{section}.{_unquoted(match[1])}" if section else _unquoted(match[1]), number)
    return found


def _unquoted(name: str) -> str:
    return re.sub(r"\s*\.\s*", ".", name).replace('"', "").replace("'", "")
