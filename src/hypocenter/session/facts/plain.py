"""What of a value set on an object can be kept as a fact: numbers, booleans, short texts, names of functions.

Nothing of the user's is called: no property, no `__repr__`, no `__float__` of a class of theirs. A framework's own
kinds are known where it is imported; none is imported here.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_TEXT = 200  # characters
MAX_ITEMS = 16  # of a tuple, list or mapping; longer ones are data
NOT_PLAIN = object()


def plain(value: Any, *, depth: int = 2) -> Any:
    """Return the value as JSON can hold it (None, bool, int, float, str, list, dict), or NOT_PLAIN."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, enum.Enum):
        return value._name_
    if isinstance(value, (int, float, str)):
        return _scalar(value)
    if isinstance(value, np.generic):
        return plain(value.item()) if value.dtype.kind in "biuf" else NOT_PLAIN
    for framework, read in (("torch", _of_torch), ("mindspore", _of_mindspore)):
        if framework in sys.modules and (found := read(value, sys.modules[framework])) is not None:
            return found
    if depth and (kind in (tuple, list) or _is_size(value)) and len(value) <= MAX_ITEMS:
        items = [plain(item, depth=depth - 1) for item in value]
        return NOT_PLAIN if any(item is NOT_PLAIN for item in items) else items
    if depth and kind is dict and len(value) <= MAX_ITEMS and all(type(key) is str for key in value):
        found = {key: plain(item, depth=depth - 1) for key, item in value.items()}
        return {key: item for key, item in found.items() if item is not NOT_PLAIN}
    return NOT_PLAIN


def function_name(value: Any) -> str:
    """Name a function: `torch.nn.functional.gelu`, `timm.layers.norm.LayerNorm(eps=1e-06)` of a partial; "" if none."""
    if isinstance(value, functools.partial):
        given = [*map(_shown, value.args), *(f"{key}={_shown(each)}" for key, each in value.keywords.items())]
        return f"{name}({', '.join(given)})" if (name := function_name(value.func)) else ""
    if isinstance(value, types.FunctionType):
        lines = f" ({_short_file(value.__code__)})" if "<lambda>" in value.__name__ else ""
        return f"{value.__module__}.{value.__qualname__}{lines}"
    if isinstance(value, types.BuiltinFunctionType):
        return _builtins().get(value) or f"{value.__module__ or 'builtins'}.{value.__qualname__}"
    if isinstance(value, types.MethodType):
        return function_name(value.__func__)
    if isinstance(value, type) and value.__module__ != "builtins":
        return f"{value.__module__}.{value.__qualname__}"
    return ""


def place_of(function: Any) -> str:
    """Return where a Python function is defined, inside its decorators: `modeling_llama.py:216`; "" for another."""
    for _ in range(MAX_ITEMS):
        function = members(function).get("__wrapped__", function)
    code = getattr(function, "__code__", None)
    return _short_file(code) if isinstance(code, types.CodeType) else ""


def members(thing: Any) -> Mapping[str, Any]:
    """Return the attributes that are set on an object itself; none for one with slots or without attributes."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        text = str.__str__(value)
        return text.encode("utf-8", "replace").decode() if len(text) <= MAX_TEXT else NOT_PLAIN
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -(1 << 63) <= number < 1 << 63 else str(number) if number.bit_length() < 512 else NOT_PLAIN
    real = float.__float__(value)
    return real if real - real == 0.0 else str(real)  # JSON has neither NaN nor infinities


def _of_torch(value: Any, torch: Any) -> Any:
    """Return a format's name, or the number in a tensor on the host; NOT_PLAIN of other tensors, else None."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if not isinstance(value, torch.Tensor):
        return None
    is_number = (
        type(value) is torch.Tensor and value.dim() == 0 and value.device.type == "cpu" and not value.is_complex()
    )
    return plain(value.item()) if is_number else NOT_PLAIN


def _of_mindspore(value: Any, mindspore: Any) -> Any:
    """Do the same for values of MindSpore, where a number may also be a Parameter or have one dimension."""
    if type(value).__module__ == "mindspore._c_expression.typing":
        return str(value).lower()
    if not isinstance(value, mindspore.Tensor):
        return None
    is_number = value.size == 1 and value.ndim <= 1 and mindspore.get_context("device_target") == "CPU"
    return plain(value.asnumpy().reshape(-1)[0]) if is_number else NOT_PLAIN


def _is_size(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and type(value) is torch.Size


def _shown(value: Any) -> str:
    found = plain(value)
    return (function_name(value) or type(value).__name__) if found is NOT_PLAIN else str(found)


def _short_file(code: types.CodeType) -> str:
    return f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}:{code.co_firstlineno}"


@functools.cache
def _builtins() -> dict[Any, str]:
    """Map functions made in C to torch's own names for them: `torch._C._nn.gelu` is `torch.nn.functional.gelu`."""
    found: dict[Any, str] = {}
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return found
    for place, module in (("torch", torch), ("torch.nn.functional", torch.nn.functional)):
        for name, value in vars(module).items():
            if isinstance(value, types.BuiltinFunctionType) and not name.startswith("_"):
                found[value] = f"{place}.{name}"
    return found
