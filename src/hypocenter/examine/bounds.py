"""How far a correct result can be from the exact one, for any order of the operations. Beyond it, a device is wrong.

gamma(k) = k u / (1 - k u) bounds the relative error of k roundings (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., lemma 3.1); a product of matrices errs by at most gamma(k) |A| |B| (eq. 3.13), a sum by
gamma(n - 1) sum |x| (eq. 4.4 and below). Accelerators truncate where they add the products of a matrix unit, which
counts as twice the unit roundoff (Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, 2021).
"""

from __future__ import annotations

import torch

from hypocenter.formats import FORMATS

_FORMATS = {getattr(torch, name): FORMATS[name] for name in ("float64", "float32", "float16", "bfloat16")}
UNIT = {dtype: form.roundoff for dtype, form in _FORMATS.items()}
_LEAST_NORMAL = {dtype: form.smallest_normal for dtype, form in _FORMATS.items()}
_TRUNCATES = 2.0
_EXP_ULPS = 4.0  # of exp, log, rsqrt on any device: CUDA's tables say at most 2


def gamma(k: int, unit: float) -> float:
    """Relative error of k roundings."""
    return k * unit / (1.0 - k * unit)


def product(a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """For a @ b, added up in float32 (float64 in float64), rounded to `dtype` once. All float64."""
    adds_in = torch.float64 if dtype == torch.float64 else torch.float32
    added = gamma(a.shape[1] + 2, _TRUNCATES * UNIT[adds_in]) * (a.abs() @ b.abs())
    return added + UNIT[dtype] * (exact.abs() + added) + _LEAST_NORMAL[dtype] * UNIT[dtype]


def total(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """For the sum of the rows of x (float64)."""
    return gamma(x.shape[-1] - 1, UNIT[dtype]) * x.abs().sum(-1)


def softmax(x: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """For softmax over the last dimension with the largest value subtracted.

    Blanchard, Higham, Higham, Accurately computing the log-sum-exp and softmax functions (IMA Journal of
    Numerical Analysis 41, 2021): the relative error grows with the number of addends and with how far a value
    lies below the largest.
    """
    below = x.amax(-1, keepdim=True) - x
    n = x.shape[-1]
    relative = UNIT[dtype] * (n + 2.0 * below.amax(-1, keepdim=True) + 3.0 * _EXP_ULPS + 4.0)
    return 2.0 * relative * exact + 2.0 * _LEAST_NORMAL[dtype]  # below, values may be flushed to zero


def layernorm(x: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """For (x - mean) / sqrt(variance + eps): first order in gamma, doubled for what is left out."""
    n = x.shape[-1]
    g = gamma(n + 8, UNIT[dtype])
    spread = x.var(-1, unbiased=False, keepdim=True)
    of_mean = g * x.abs().mean(-1, keepdim=True) / spread.sqrt()
    of_spread = g * x.square().mean(-1, keepdim=True) / spread  # a variance as E[x^2] - E[x]^2 loses that much
    return 2.0 * (of_mean + exact.abs() * of_spread + 8.0 * UNIT[dtype] * exact.abs())
