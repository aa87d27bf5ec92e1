"""What an operator should have given, in float64 on the CPU, and how far a healthy device may be from it.

Bounds are worst cases of rounding, not typical errors: a sum of n products may be off by n·u·Σ|x||y| (Higham, Accuracy
and Stability of Numerical Algorithms, 2nd ed., section 3.1), u the unit roundoff of the format that adds. A healthy
device in any order of summation stays below; a flipped exponent bit, or a product left out, does not, unless the result
is itself smaller than its rounding. What overflows on the way to a result of ordinary size (the squares in a layer
norm) is no fault either, nor is what vanishes there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from hypocenter.formats import FORMATS, format_of
from hypocenter.replay.adjudicate import map_tensors
from hypocenter.replay.effort import Allowance

SAFETY = 4.0  # times the worst case: kernels round intermediate results that the bounds do not know of
MOST_PRODUCTS = 1 << 31
"""Multiplications done one by one, about a second on a core; above, sums of rows are compared, or some rows."""
UNITS: dict[torch.dtype, float] = {
    getattr(torch, name): FORMATS[name].roundoff for name in ("float16", "bfloat16", "float32", "float64")
}
"""Unit roundoff: half of the distance from 1 to the next number (IEEE 754, binary)."""
U_TF32 = 2.0**-11  # inputs cut to 10 bits of fraction (NVIDIA A100 white paper, 2020)


class TooMuch(Exception):
    """Raised where an op takes more time or memory than is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The value of one output in float64 on the CPU, its bound, and the largest magnitudes on the way to it."""

    value: torch.Tensor
    bound: torch.Tensor
    mass: torch.Tensor  # of what may be held in the format of the output
    inner: torch.Tensor  # of what is held in the format that adds: float32 for all narrower ones
    project: Callable[[torch.Tensor], torch.Tensor] = lambda out: out  # what of the output is compared with `value`
    rows: torch.Tensor | None = None  # numbers of the output's rows that `value` has; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an operator, with its floating tensors in float64 on the CPU, unless it is judged in part."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtypes: tuple[torch.dtype, ...]  # of its floating tensors, as they were
    out_dtypes: tuple[torch.dtype | None, ...]  # of its results; None: no floating tensor
    device: str
    outputs: tuple[Any, ...] = ()  # as the operator gave them
    allowed: Allowance | None = None  # of what is judged in part

    def __call__(self, *, magnitudes: bool = False) -> tuple[Any, ...]:
        """Execute it in float64: on the values, or on their magnitudes."""
        args, kwargs = map_tensors(self.args, torch.clone), map_tensors(self.kwargs, torch.clone)
        if magnitudes:
            args, kwargs = map_tensors(args, _abs), map_tensors(kwargs, _abs)
        with torch.no_grad():
            out = self.func(*args, **kwargs)
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    def tensor(self, position: int) -> torch.Tensor:
        """Return an argument that must be a tensor."""
        value = self.args[position]
        if not isinstance(value, torch.Tensor):
            raise NotImplementedError(f"argument {position} is no tensor")
        return value

    @property
    def u(self) -> float:
        """The unit roundoff of what adds: float32 for all narrower formats."""
        return UNITS[torch.float64] if torch.float64 in self.dtypes else UNITS[torch.float32]

    def u_out(self, index: int = 0) -> float:
        """Return the unit roundoff of a result's format, or the largest of the inputs': some is left in those."""
        return max(UNITS.get(dtype, 0.0) for dtype in (self.out_dtypes[index] or torch.float32, *self.dtypes))

    @property
    def is_half(self) -> bool:
        """Whether anything is in a 16-bit format: partial results may be too."""
        return torch.float16 in self.dtypes or torch.bfloat16 in self.dtypes

    def underflow(self, n: int) -> float:
        """Return what n products may lose below the smallest numbers of their format, as factors or results vanish."""
        tensors = (t for t in (*self.args, *self.kwargs.values()) if isinstance(t, torch.Tensor) and t.numel())
        ends = (torch.stack(torch.aminmax(t)) for t in tensors if t.is_floating_point())
        largest = max((float(end.abs().max()) for end in ends), default=0.0)
        half = n * 2.0**-25 if torch.float16 in self.dtypes else 0.0
        return half + n * self.tiny * (1.0 + largest)

    @property
    def tiny(self) -> float:
        """The smallest normal number of what adds: below it a partial result may be taken for zero."""
        return float(torch.finfo(torch.float64 if torch.float64 in self.dtypes else torch.float32).tiny)

    @property
    def u_product(self) -> float:
        """How much narrower than their format the factors of a matmul may be taken, and partial sums stored."""
        if torch.float64 in self.dtypes:
            return 0.0
        is_half = self.is_half
        if self.device == "cpu":
            precision = torch.get_float32_matmul_precision()
            return 0.0 if is_half or precision == "highest" else {"high": U_TF32}.get(precision, 2.0**-8)
        if is_half:
            return 8 * max(UNITS[d] for d in self.dtypes if d in UNITS)  # split sums kept in the half format
        return 2 * U_TF32  # cuBLAS and cuDNN may use TF32; whether they did cannot be read everywhere


def finished(
    call: Call,
    value: torch.Tensor,
    error: torch.Tensor | float,
    mass: torch.Tensor | None = None,
    *,
    index: int = 0,
    inner: torch.Tensor | None = None,
) -> Expected:
    """Make an expectation from the error of the arithmetic: with safety, and the rounding of the result.

    Args:
        error: worst case of the arithmetic, without safety.
        mass: largest magnitude on the way; that of the value when not given.
        index: of the result.
        inner: largest magnitude among what never leaves the kernel, where it may be larger than `mass`.
    """
    mass = value.abs() if mass is None else mass
    dtype = call.out_dtypes[index] or torch.float32
    form = format_of(dtype) or FORMATS["float32"]
    bound = SAFETY * (error + call.u_out(index) * value.abs() + 4 * form.least_kept)
    bound = torch.as_tensor(bound, dtype=torch.float64, device="cpu").expand_as(value)
    return Expected(value=value, bound=bound, mass=mass, inner=mass if inner is None else inner)


def of_rows(expected: Expected, rows: torch.Tensor, n: int) -> Expected:
    """Restrict an expectation to some of the n rows of a result."""
    return replace(expected, rows=rows, project=lambda out: out.reshape(n, -1)[rows])


def _abs(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor
