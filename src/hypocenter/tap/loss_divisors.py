"""By which numbers a loss was multiplied, and how often divided by one, read off the tape: `0.25 * (loss / 4)`.

A division that makes a mean of as many terms is none: `(a + b + c + d) / 4`, `losses.sum() / 4`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hypocenter.tap.tape import PLACEHOLDERS, Event, Tape

_DIVIDES = frozenset({"div", "div_", "__div__", "__truediv__", "__itruediv__", "true_divide"})
_MULTIPLIES = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"})
_ADDS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "__isub__"})
_LEAVES_AS_IT_IS = frozenset({"float", "to", "double", "clone", "squeeze", "view", "reshape", "contiguous"})
_SUM: int = torch.nn._reduction.get_enum("sum")  # type: ignore[attr-defined]
_NEAR = 1e-6  # relative


def n_divisions(tape: Tape, slot: int, by: int) -> int:
    """Count the operations in a row that divide a value on the tape by that number."""
    n = 0
    while (event := tape.maker(slot)) is not None and event.module is None:
        name, inputs = _name(event), _inputs(event)
        if name in _ADDS and len(inputs) > 1:
            return n + min(n_divisions(tape, each, by) for each in inputs)
        if len(inputs) != 1 or name not in _DIVIDES | _MULTIPLIES | _LEAVES_AS_IT_IS:
            break
        (slot,) = inputs
        n += _is_by(event, name, by) and not _is_sum_of(tape, slot, by)
    return n


def factor_of(tape: Tape, slot: int) -> float:
    """Return the product of the numbers by which a value on the tape is multiplied in the end."""
    factor = 1.0
    while (event := tape.maker(slot)) is not None and event.module is None:
        name, inputs = _name(event), _inputs(event)
        if len(inputs) != 1 or name not in _DIVIDES | _MULTIPLIES | _LEAVES_AS_IT_IS:
            break
        (slot,) = inputs
        factor /= _divisor(event, name) or 1.0
    return factor


def _is_by(event: Event, name: str, by: int) -> bool:
    divisor = _divisor(event, name)
    return divisor is not None and math.isclose(divisor, by, rel_tol=_NEAR)


def _divisor(event: Event, name: str) -> float | None:
    """Return the number that an operation divides by; None if it is no number, or the operation leaves all as it is."""
    others = [each for each in event.args if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if len(others) != 1 or not others[0] or name in _LEAVES_AS_IT_IS:
        return None
    return others[0] if name in _DIVIDES else 1.0 / others[0]


def _is_sum_of(tape: Tape, slot: int, n: int) -> bool:
    """Return whether a value may be a sum of so many terms."""
    event = tape.maker(slot)
    if event is None:
        return True
    if _name(event) in _ADDS:
        return _n_terms(tape, slot) == n
    if _name(event) in ("sum", "nansum", "dot", "einsum") or event.kwargs.get("reduction") == "sum":
        return True
    return any(type(each) is int and each == _SUM for each in event.args)  # of a loss that is written in C


def _n_terms(tape: Tape, slot: int) -> int:
    event = tape.maker(slot)
    if event is None or _name(event) not in _ADDS:
        return 1
    return sum(_n_terms(tape, each) for each in _inputs(event))


def _name(event: Event) -> str:
    return getattr(event.function, "__name__", "")


def _inputs(event: Event) -> list[int]:
    """Return the slots among the first two arguments of an operation."""
    found: list[Any] = [PLACEHOLDERS.number(each) for each in event.args[:2] if isinstance(each, Tensor)]
    return [each for each in found if each is not None]
