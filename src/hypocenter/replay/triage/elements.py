"""Expectations of operators that work element by element, and of those that only move values."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from hypocenter.replay.triage.expected import Call, Expected, finished

ULPS = 16  # of a result: vector libraries promise one to four


def moved(call: Call) -> list[Expected | None]:
    """Expect values that are copied, selected, rounded to another format, or compared: no error."""
    if call.kwargs.get("reduce") is not None:
        raise NotImplementedError("scatter that adds or multiplies")
    return _each(call, lambda value: torch.zeros((), dtype=torch.float64, device="cpu"))


def multiplied(call: Call) -> list[Expected | None]:
    """Expect results with a small relative error: products, quotients, roots, exponentials."""
    if call.kwargs.get("rounding_mode") is not None:
        raise NotImplementedError("a quotient next to an integer may be rounded either way")
    return _each(call, lambda value: ULPS * call.u * value.abs())


def bounded(call: Call) -> list[Expected | None]:
    """Expect functions whose error is small against 1: sigmoid, tanh, sine, logarithm."""
    return _each(call, lambda value: ULPS * call.u * (1.0 + value.abs()))


def exponential_unit(call: Call) -> list[Expected | None]:
    """Expect elu, with an error small against its factor: torch before 2.8 or so computes exp(x) - 1 as it stands."""
    numbers = [abs(v) for v in (*call.args[1:3], *call.kwargs.values()) if isinstance(v, (int, float))]
    factor = math.prod(max(1.0, number) for number in numbers)
    return _each(call, lambda value: ULPS * call.u * (factor + value.abs()))


def gated(call: Call) -> list[Expected | None]:
    """Expect gelu, silu and the like, with an error small against their argument."""
    x = call.tensor(0).abs()
    return _each(call, lambda value: ULPS * (call.u + call.u_out()) * (x + value.abs()), inner=8 * x)


def gated_backward(call: Call) -> list[Expected | None]:
    """Expect gradients of gated functions, with an error small against the incoming gradient times (1 + |x|)."""
    grad, x = call.tensor(0).abs(), call.tensor(1).abs()
    size = grad * (1.0 + x)
    return _each(call, lambda value: ULPS * call.u * size + call.u_out() * size, inner=(1.0 + grad) * (1.0 + x * x))


def added(call: Call) -> list[Expected | None]:
    """Expect sums of two or three, with errors against the magnitudes, since the sum may cancel."""
    sizes = [_size(v) for v in (*call.args, *call.kwargs.values())]
    others = torch.ones((), dtype=torch.float64, device="cpu")
    name = call.func.__name__.partition(".")[0].rstrip("_")
    inner, lost = None, 0.0
    if name in ("addcmul", "addcdiv"):
        factor, value = sizes[2] if name == "addcmul" else 1.0 / sizes[2], _size(call.kwargs.get("value", 1.0))
        mass = sizes[0] + sizes[1] * factor * value
        inner = mass + sizes[1] * torch.maximum(factor, value)  # in any order
        lost = call.tiny * (factor + value)
    elif name == "lerp":
        mass = sizes[0] + (sizes[0] + sizes[1]) * sizes[2]
        inner = sizes[0] + sizes[1]
    else:
        alpha = _size(call.kwargs.get("alpha", call.args[2] if len(call.args) > 2 else 1.0))
        mass = (sizes[0] + sizes[1]) * torch.maximum(alpha, others)
    return _each(call, lambda value: (4 * call.u + call.u_out()) * mass + lost, mass, inner)


def _size(value: object) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.abs().double()
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 1.0
    return torch.tensor(abs(number), dtype=torch.float64, device="cpu")


def _each(
    call: Call,
    error: Callable[[torch.Tensor], torch.Tensor],
    mass: torch.Tensor | None = None,
    inner: torch.Tensor | None = None,
) -> list[Expected | None]:
    found: list[Expected | None] = []
    for index, value in enumerate(call()):
        if not isinstance(value, torch.Tensor) or call.out_dtypes[index] is None:
            found.append(None)
            continue
        value = value.double()
        size = value.abs() if mass is None else mass.expand_as(value)
        found.append(finished(call, value, error(value), size, index=index, inner=inner))
    return found
