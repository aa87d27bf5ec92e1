"""Any nested value in, its tensors out, whatever framework they are of."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

MAX_DEPTH = 8  # containers within containers; a KV cache is output[past][layers][0][keys], 5 deep
MAX_TENSORS = 1024  # per value; a 100-layer cache holds 200
MAX_NODES = 8192  # values looked at, so that a config or a tokenizer in an argument cannot stall a step


class Walk:
    """One walk through a nested value; what it finds is in `found`, as (path, tensor).

    Args:
        tensor: the class of tensors.
        leaves: classes that are not looked into.
    """

    def __init__(self, tensor: type[Any], leaves: tuple[type[Any], ...]) -> None:
        self.found: list[tuple[str, Any]] = []
        self._tensor, self._leaves = tensor, leaves
        self._seen: dict[int, object] = {}  # holds the values too, so that no id is used again meanwhile
        self._n_nodes = 0

    def visit(self, value: object, path: str, depth: int) -> None:
        """Look at a value that sits at `path`."""
        if isinstance(value, self._tensor):
            if len(self.found) < MAX_TENSORS:
                self.found.append((path, value))
            return
        if isinstance(value, self._leaves) or id(value) in self._seen or depth > MAX_DEPTH or self._n_nodes > MAX_NODES:
            return
        self._seen[id(value)] = value
        for key, child in children(value):
            self._n_nodes += 1
            self.visit(child, f"{path}[{key}]", depth + 1)


def children(value: Any) -> list[tuple[Any, Any]]:
    """Return (key, child) of a sequence, a mapping, or the attributes of any other object."""
    try:
        if isinstance(value, (tuple, list, deque)):
            return list(enumerate(cast("list[Any]", value)))
        if isinstance(value, Mapping):
            return list(cast("Mapping[Any, Any]", value).items())
        return _attributes(value)
    except Exception:  # an object whose own access methods raise: it is opaque to us
        return []


def _attributes(value: Any) -> list[tuple[str, Any]]:
    names: dict[str, Any] = {}
    if dataclasses.is_dataclass(value):
        names = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}
    return list({**names, **getattr(value, "__dict__", {})}.items())
