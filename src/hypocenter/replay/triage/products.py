"""Expectations of matrix products, by NumPy: another library than the one under test."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from hypocenter.replay.triage import expected
from hypocenter.replay.triage.expected import SAFETY, Call, Expected, finished


def matmul(call: Call) -> list[Expected | None]:
    """Expect the product of mm, bmm, mv, dot or matmul."""
    return [_product(call, call.tensor(0), call.tensor(1))]


def addmm(call: Call) -> list[Expected | None]:
    """Expect beta * self + alpha * (a @ b): addmm, baddbmm, addmv."""
    beta, alpha = float(call.kwargs.get("beta", 1)), float(call.kwargs.get("alpha", 1))
    return [_product(call, call.tensor(1), call.tensor(2), beta=beta, alpha=alpha, added=call.tensor(0))]


def linear(call: Call) -> list[Expected | None]:
    """Expect x @ w.T + b, where it is an operator of its own (oneDNN, MPS)."""
    added = call.args[2] if len(call.args) > 2 and isinstance(call.args[2], torch.Tensor) else None
    return [_product(call, call.tensor(0), call.tensor(1).mT, added=added)]


def _product(
    call: Call, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1.0, alpha: float = 1.0,
    added: torch.Tensor | None = None,
) -> Expected:  # fmt: skip
    k = a.shape[-1]
    n_products = a.numel() * (b.shape[-1] if b.dim() > 1 else 1)
    if n_products > expected.MOST_PRODUCTS and a.dim() > 1 and b.dim() > 1:
        return _row_sums(call, a, b, beta, alpha, added)
    value, mass = alpha * _matmul(a, b), abs(alpha) * _matmul(a.abs(), b.abs())
    rounding = call.u_out() * value.abs()  # the product may be stored before anything is added to it
    if added is not None and beta != 0.0:
        value = value + beta * added
        rounding = rounding + call.u_out() * (beta * added).abs()
        mass = mass + (beta * added).abs()
    return finished(call, value, ((k + 4) * call.u + 2 * call.u_product) * mass + rounding + call.underflow(k), mass)


def _row_sums(
    call: Call, a: torch.Tensor, b: torch.Tensor, beta: float, alpha: float, added: torch.Tensor | None
) -> Expected:
    """Expect sums of rows with random signs (Freivalds, 1977): any wrong element shows, in n² work instead of n³."""
    signs = _signs(b.shape[-1])
    value = alpha * _matmul(a, _matmul(b, signs))
    mass = abs(alpha) * _matmul(a.abs(), b.abs().sum(-1))
    if added is not None and beta != 0.0:
        whole = (beta * added).expand(*value.shape, b.shape[-1])
        value, mass = value + _matmul(whole, signs), mass + whole.abs().sum(-1)
    error = ((a.shape[-1] + 8) * call.u + 2 * call.u_product + 2 * call.u_out()) * mass
    error = error + b.shape[-1] * 2.0**-53 * mass
    done = finished(call, value, error, mass)
    return Expected(value=value, bound=done.bound * SAFETY, mass=mass, inner=mass, project=_projection(signs))


def _projection(signs: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda out: _matmul(out, signs)


def _signs(n: int) -> torch.Tensor:
    numbers = torch.arange(n, dtype=torch.int64, device="cpu")
    mixed = (numbers * 0x9E3779B1) ^ (numbers >> 3)  # 2**32 / golden ratio: Fibonacci hashing, Knuth 6.4
    return 1.0 - 2.0 * ((mixed >> 15) & 1).double()


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import numpy as np

    with np.errstate(all="ignore"):
        return torch.from_numpy(np.asarray(a.numpy() @ b.numpy()))


def convolution(call: Call) -> list[Expected | None]:
    """Expect sums of products over the kernel; algorithms that transform (Winograd, FFT) get eight times the bound."""
    weight = call.tensor(1)
    n = math.prod(weight.shape[1:]) if not call.args[6] else weight.numel()  # transposed: the other dimension
    mass = call(magnitudes=True)[0]
    return [finished(call, call()[0], convolved(call, n) * mass + call.underflow(n), mass)]


def convolution_backward(call: Call) -> list[Expected | None]:
    """Expect gradients of input, weight and bias: sums of products over what each does not have."""
    grad = call.tensor(0)
    n = max(call.tensor(2).numel(), grad.numel() // max(1, grad.shape[1]))
    found: list[Expected | None] = []
    for index, (value, mass) in enumerate(zip(call(), call(magnitudes=True), strict=True)):
        is_there = isinstance(value, torch.Tensor) and call.out_dtypes[index] is not None
        error = convolved(call, n) * mass + call.underflow(n) if is_there else 0.0
        found.append(finished(call, value, error, mass, index=index) if is_there else None)
    return found


def convolved(call: Call, n: int) -> float:
    """Return the error of n products that a convolution adds up, relative to their magnitudes."""
    u = call.u_out() if call.is_half else call.u  # some CPUs add up samples in the 16-bit format
    return (n + 8) * u * (1 if call.device == "cpu" else 8) + 2 * call.u_product
