"""Which operators the code of each module calls, in order, and with which constants: `gelu(approximate="tanh")`.

What a function call is told is set on no module, so nothing else in a recording tells of it. Noted of one micro-batch,
while its operators are seen anyway: at level `ops`, and in the replay that a calibration begins with.
"""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import torch

from hypocenter.nouns import OperatorCall
from hypocenter.tap.collective_ops import is_wrapped
from hypocenter.tap.dispatch import Mode, declared, is_view, name_of
from hypocenter.tap.op_context import OpContext, OpPlace

MAX_CALLS = 20_000
_MAX_TEXT = 40  # characters of a constant
_LOSS = "loss"  # how OpContext calls the code outside of modules


class OperatorCalls:
    """Collects calls; `calls` are those so far."""

    def __init__(self) -> None:
        self.calls: list[OperatorCall] = []
        self._first: tuple[int, int] | None = None

    def is_first(self, step: int, microbatch: int) -> bool:
        """Return whether this is the micro-batch whose calls are noted: the first one that is asked about."""
        if self._first is None:
            self._first = step, microbatch
        return self._first == (step, microbatch)

    def note(self, func: Any, args: Any, kwargs: Any, place: OpPlace) -> None:
        """Note that an operator was called at a place. Views and backward are left out: they compute nothing new."""
        if place.phase not in ("forward", "loss") or place.recompute or len(self.calls) >= MAX_CALLS:
            return
        site = "" if place.site == _LOSS and place.phase == "loss" else place.site
        where = f"{place.code.co_filename.rpartition('/')[2]}:{place.line}" if place.code is not None else ""
        constants = _constants(func, args, kwargs or {})
        self.calls.append(
            OperatorCall(module=site, phase=place.phase, op=name_of(func), constants=constants, where=where)
        )


class CallsMode(Mode):
    """A mode that notes the calls of a replay, and changes nothing."""

    def __init__(self, context: OpContext) -> None:
        super().__init__()
        self._context = context
        self.noted = OperatorCalls()

    def restart(self) -> None:
        """Start from the beginning, as the first try to replay was impossible."""
        self.noted = OperatorCalls()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_wrapped(types):
            return NotImplemented
        if not is_silent(func):
            self.noted.note(func, args, kwargs, self._context.place(name_of(func)))
        return func(*args, **(kwargs or {}))


@functools.lru_cache(maxsize=4096)
def is_silent(func: Any) -> bool:
    """Return whether an operator computes nothing: views, memory that is only reserved."""
    return is_view(func) or "empty" in func.__name__


def _constants(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return arguments that are no tensor, size or place (numbers, flags, words, formats), by the schema's names."""
    found: dict[str, Any] = {}
    for index, name, usual in _named(func):
        value = _plain(args[index] if index is not None and index < len(args) else kwargs.get(name, usual))
        if value is not None:
            found[name] = value
    return found


@functools.lru_cache(maxsize=4096)
def _named(func: Any) -> tuple[tuple[int | None, str, Any], ...]:
    """Return position, name and default of the arguments that are no sizes: those differ rightly between batches."""
    sizes = set(re.findall(r"SymInt\S* (\w+)", str(getattr(func, "_schema", ""))))
    return tuple(
        (None if argument.kwarg_only else index, argument.name, argument.default_value)
        for index, argument in enumerate(declared(func))
        if argument.name not in sizes
    )


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has neither NaN nor infinities
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if isinstance(value, (tuple, list)) and len(value) <= 8 and all(isinstance(one, (bool, int)) for one in value):
        return list(value)
    return None
