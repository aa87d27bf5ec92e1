"""Divide an operand before a reduction by a power of two, multiply the result by it after, in float32.

For sums over a length (linear attention's key sum, einsum, matmul): the sum of n values that fit divided by n fits too,
and a power of two costs no digit. Published as `values = values / v_length` before the einsum and `* v_length` behind
the last one; the multiplication has to come where the result fits again, or in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hypocenter.diagnose.evidence import Evidence
from hypocenter.replay.remedies.casts import Caster, back
from hypocenter.replay.remedies.kinds import RemedyKind
from hypocenter.replay.remedies.layer import Layer
from hypocenter.replay.remedies.wide_forward import is_autocast_on

LINEAR = frozenset(
    {"sum", "einsum", "matmul", "__matmul__", "mm", "bmm", "mv", "dot", "inner", "cumsum", "norm", "vector_norm"}
)
"""Functions with f(a / s) * s == f(a) in each of their operands, for s > 0."""

LOW = (torch.float16, torch.bfloat16)
MAX_LOG2 = 24  # float16's smallest subnormal is 2**-24: a larger divisor turns ones into zeros


def applies(evidence: Evidence | None) -> bool:
    """Return whether it may help: to a reduction with finite operands whose result is too large for its format."""
    if evidence is None or evidence.origin is None:
        return True
    reduces = any(name in evidence.origin.op for name in ("sum", "mm", "mv", "dot", "norm", "einsum", "mean"))
    low = any(t.dtype in ("float16", "bfloat16") for t in evidence.origin.outputs)
    return reduces and low and evidence.float64.finite


class Prescaled(TorchFunctionMode):
    """Prescale reductions in this block by the smallest power of two with which their result fits."""

    def __init__(self) -> None:
        super().__init__()
        self.divisors: dict[str, float] = {}  # torch function -> largest power of two that was needed

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs if kwargs is not None else {}
        operands = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.is_floating_point()]
        if func.__name__ not in LINEAR or kwargs.get("out") is not None or not operands:
            return func(*args, **kwargs)
        narrow = next((args[i].dtype for i in operands if args[i].dtype in LOW), None)
        is_mixed = narrow is not None and any(args[i].dtype == torch.float32 for i in operands)
        if not (is_mixed and not is_autocast_on()):  # else one is a product of ours, too large to be cast back
            result = func(*args, **kwargs)
            if not isinstance(result, Tensor) or result.dtype not in LOW or bool(torch.isfinite(result).all()):
                return result
        largest = max(operands, key=lambda i: float(args[i].detach().abs().max()) if args[i].numel() else 0.0)
        return self._prescaled(func, args, kwargs, largest, narrow)

    def _prescaled(self, func: Callable[..., Any], args: Any, kwargs: Any, which: int, narrow: Any) -> Any:
        again: Any = None
        for log2 in range(MAX_LOG2 + 1):
            operand = args[which] / 2.0**log2
            smaller = [*args[:which], operand if narrow is None else operand.to(narrow), *args[which + 1 :]]
            again = func(*smaller, **kwargs)
            if bool(torch.isfinite(again).all()):
                self.divisors[func.__name__] = max(self.divisors.get(func.__name__, 1.0), 2.0**log2)
                return again.float() * 2.0**log2
        return again


class _PrescaledForward(Layer):
    def __init__(self, module: nn.Module, mode: Prescaled) -> None:
        super().__init__(module, outermost=True)
        self.mode = mode

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.mode:
            result = self.wrapped(*args, **kwargs)
        given = Caster(torch.float32, LOW)
        given.cast((args, kwargs))
        return result if given.first is None or is_autocast_on() else back(result, torch.float32, given.first)


@contextlib.contextmanager
def around(modules: Sequence[nn.Module]) -> Generator[Prescaled, None, None]:
    """Prescale reductions inside the modules' forwards, within this block; give what divisors were needed."""
    mode = Prescaled()
    layers = [_PrescaledForward(module, mode) for module in modules]
    for layer in layers:
        layer.put_on()
    try:
        yield mode
    finally:
        for layer in reversed(layers):
            layer.take_off()


def text(targets: Sequence[str]) -> str:
    """Say the change in words."""
    where = ", ".join(target or "the model" for target in targets)
    return (
        f"in {where} divide the operand of the sum, einsum or matmul by its length (or a power of two) before, and "
        "multiply the result by it after, in float32 or where it fits again"
    )


KIND = RemedyKind(name="prescale", order=2, applies=applies, around=around, text=text)
