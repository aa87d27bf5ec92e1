"""Any nested value in, its MindSpore tensors out, with where they sit in it."""

from __future__ import annotations

from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

from mindspore import Tensor, nn  # pyright: ignore[reportMissingImports]
from mindspore import dtype as mstype  # pyright: ignore[reportMissingImports]

from hypocenter.tap.walking import Walk

_LEAVES: tuple[type[Any], ...] = (
    str, bytes, int, float, complex, bool, type(None), range, slice, type, nn.Cell, FunctionType, MethodType,
    ModuleType, Enum, type(mstype.float32), type(mstype.int32), type(mstype.bool_),
)  # fmt: skip


def flatten(value: object, prefix: str = "") -> list[tuple[str, Any]]:
    """Return every tensor in a nested value, with `prefix` before "" (a bare tensor), "[0]", "[logits]", "[0][k]".

    Looks into sequences, mappings, dataclasses and attributes of any other object, but not into cells and code. Depth
    and count are bounded, cycles are safe; a container met twice is walked once, at its first place.
    """
    if isinstance(value, Tensor):
        return [(prefix, value)]
    walk = Walk(Tensor, _LEAVES)
    walk.visit(value, prefix, 0)
    return walk.found
