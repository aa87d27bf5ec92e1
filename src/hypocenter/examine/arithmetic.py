"""A short burn: matmul, sums, softmax and layer norm on this device, against float64 and against itself.

Three ways to be wrong are told apart: a value outside the bound of its format (bounds.py), an integer product that is
not exact, and a repeat whose bits differ from the first (a fault that comes and goes). The digests of the first results
go out: ranks with the same hardware and the same library must have the same ones.

How far a correct result can be from the exact one, for any order of the operations. Beyond it, a device is wrong.

gamma(k) = k u / (1 - k u) bounds the relative error of k roundings (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., lemma 3.1); a product of matrices errs by at most gamma(k) |A| |B| (eq. 3.13), a sum by
gamma(n - 1) sum |x| (eq. 4.4 and below). Accelerators truncate where they add the products of a matrix unit, which
counts as twice the unit roundoff (Fasi, Higham, Mikaitis, Pranesh, Numerical behavior of NVIDIA tensor cores, 2021).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hypocenter.examine import patterns
from hypocenter.examine.device import Device, brief, versions
from hypocenter.examine.pace import core_wait_ms
from hypocenter.formats import FORMATS

_MIN_REPEATS, _MAX_REPEATS = 3, 200
_TIMED = 7
Tensors = tuple[torch.Tensor, ...]
_FORMATS = {getattr(torch, name): FORMATS[name] for name in ("float64", "float32", "float16", "bfloat16")}
UNIT = {dtype: form.roundoff for dtype, form in _FORMATS.items()}
_LEAST_NORMAL = {dtype: form.smallest_normal for dtype, form in _FORMATS.items()}
_TRUNCATES = 2.0
_EXP_ULPS = 4.0  # of exp, log, rsqrt on any device: CUDA's tables say at most 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One operation. `inputs` are on the CPU; `right` and `bound` are in float64."""

    name: str
    dtype: torch.dtype
    inputs: Tensors
    run: Callable[..., torch.Tensor]
    right: torch.Tensor
    bound: torch.Tensor | None  # None: every bit


def examine(device: Device, at: Callable[[str], None], out: dict[str, Any], budget_s: float) -> None:
    """Run all tests for about `budget_s`; fill `out`: "tests", "matmul_ms", and "group" (equal ones: equal bits)."""
    deadline = time.monotonic() + budget_s
    out.update(device=device.name, kind=device.kind, group=_group(device), tests=[], skipped=[])
    with _precise():
        out["matmul_ms"], out["core_wait_ms"] = _timed(device, at)
        ready: list[tuple[Test, Tensors, torch.Tensor, dict[str, Any]]] = []
        for test in tests(device):
            at(f"computing {test.name} in {patterns.NAMES[test.dtype]}")
            try:
                inputs = tuple(x.to(device.torch) for x in test.inputs)
                first = test.run(*inputs)
                device.finish(time.monotonic() + 30.0)
            except (RuntimeError, NotImplementedError) as error:  # no such kernel for this format here
                out["skipped"].append([f"{test.name} in {patterns.NAMES[test.dtype]}", brief(error)])
                continue
            entry = judged(test, first.cpu())
            out["tests"].append(entry)
            ready.append((test, inputs, first, entry))
        _repeat(ready, device, at, deadline)


def tests(device: Device) -> Iterator[Test]:
    """Yield all tests; the inputs are the same on every rank."""
    formats = [torch.float32, torch.bfloat16, torch.float16]
    for dtype in formats:
        m, k = (2048, 4096) if device.kind == "cuda" else (128, 512)
        if device.is_cpu and dtype != torch.float32:
            m, k = 48, 256  # some processors have no fast way to do it
        where = device.torch if device.kind == "cuda" else torch.device("cpu")  # for float64: not every device has it
        yield _integers(dtype, m, k, where)
        yield _product(dtype, m, k, where)
    yield _sum(64, 4096 if device.is_cpu else 1 << 16)
    yield _softmax(64, 512 if device.is_cpu else 4096)
    yield _layernorm(64, 512 if device.is_cpu else 4096)


def judged(test: Test, result: torch.Tensor) -> dict[str, Any]:
    """Compare a result: {"name", "dtype", "n_wrong", "n", "worst" (as a share of the bound), "first", "digest"}."""
    got = result.double()
    error = (got - test.right).abs()
    if test.bound is None:
        wrong = got != test.right
        worst = None
    else:
        wrong = ~(error <= test.bound)  # NaN is wrong too
        worst = float((error / test.bound).nan_to_num(nan=float("inf")).max())
    entry: dict[str, Any] = {
        "name": test.name, "dtype": patterns.NAMES[test.dtype], "n": got.numel(), "n_wrong": int(wrong.sum()),
        "worst": worst, "digest": digest(result), "n_repeats": 1, "n_unequal": 0,
    }  # fmt: skip
    if entry["n_wrong"]:
        index = int(wrong.flatten().nonzero()[0])
        limit = None if test.bound is None else float(test.bound.flatten()[index])
        entry["first"] = {
            "index": index, "expected": float(test.right.flatten()[index]), "actual": float(got.flatten()[index]),
            "limit": limit,
        }  # fmt: skip
    return entry


def digest(tensor: torch.Tensor) -> str:
    """Return a digest of the tensor's bytes."""
    return hashlib.blake2b(tensor.contiguous().view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()


def _repeat(
    ready: list[tuple[Test, Tensors, torch.Tensor, dict[str, Any]]],
    device: Device,
    at: Callable[[str], None],
    deadline: float,
) -> None:
    """Run the tests again and again: every bit must come out as the first time."""
    at("computing the same again")
    for n_done in range(_MAX_REPEATS):
        if n_done >= _MIN_REPEATS - 1 and time.monotonic() > deadline:
            return
        for test, inputs, first, entry in ready:
            result = test.run(*inputs)
            device.finish(time.monotonic() + 30.0)
            entry["n_repeats"] += 1
            entry["n_unequal"] += not torch.equal(result.view(torch.uint8), first.view(torch.uint8))


def _integers(dtype: torch.dtype, m: int, k: int, where: torch.device) -> Test:
    """Return a test of whole numbers: all products and partial sums are exact in float32, rounded once at the end."""
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-15, 16, shape, generator=draw).double() for shape in ((m, k), (k, m)))  # 225 k < 2**24
    right = (a.to(where) @ b.to(where)).cpu().to(dtype).double()
    return Test(
        name="matmul of integers", dtype=dtype, inputs=(a.to(dtype), b.to(dtype)), run=_mm, right=right, bound=None
    )


def _product(dtype: torch.dtype, m: int, k: int, where: torch.device) -> Test:
    draw = torch.Generator().manual_seed(2)
    a, b = (torch.randn(shape, generator=draw).to(dtype) for shape in ((m, k), (k, m)))
    wide_a, wide_b = a.to(where).double(), b.to(where).double()
    exact = wide_a @ wide_b
    bound = product_bound(wide_a, wide_b, exact, dtype)
    return Test(name="matmul", dtype=dtype, inputs=(a, b), run=_mm, right=exact.cpu(), bound=bound.cpu())


def _sum(rows: int, n: int) -> Test:
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(3))
    bound = sum_bound(x.double(), torch.float32)
    return Test(
        name="sum", dtype=torch.float32, inputs=(x,), run=lambda x: x.sum(-1), right=x.double().sum(-1), bound=bound
    )


def _softmax(rows: int, n: int) -> Test:
    x = 4.0 * torch.randn(rows, n, generator=torch.Generator().manual_seed(4))
    exact = torch.softmax(x.double(), -1)
    bound = softmax_bound(x.double(), exact, torch.float32)
    return Test(
        name="softmax", dtype=torch.float32, inputs=(x,), run=lambda x: torch.softmax(x, -1), right=exact, bound=bound
    )


def _layernorm(rows: int, n: int) -> Test:
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(5)) + 0.5
    exact = torch.nn.functional.layer_norm(x.double(), (n,))
    bound = layernorm_bound(x.double(), exact, torch.float32)
    return Test(
        name="layer norm", dtype=torch.float32, inputs=(x,), run=lambda x: torch.nn.functional.layer_norm(x, (n,)),
        right=exact, bound=bound,
    )  # fmt: skip


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def _timed(device: Device, at: Callable[[str], None]) -> tuple[list[float], list[float]]:
    """Return how long this rank alone takes for a product (ms), and for how much of that it waited for a core."""
    at("computing a timed matmul")
    size = 384 if device.is_cpu else 4096
    a = torch.ones(size, size, device=device.torch)
    taken: list[float] = []
    lost: list[float] = []
    for _ in range(_TIMED + 1):
        waited, started = core_wait_ms(), time.perf_counter()
        torch.mm(a, a)
        device.finish(time.monotonic() + 30.0)
        taken.append((time.perf_counter() - started) * 1e3)
        lost.append((core_wait_ms() or 0.0) - (waited or 0.0))
    return taken[1:], lost[1:]  # the first pays for what libraries set up


def _group(device: Device) -> str:
    """Return a text: ranks with the same text must compute the same bits."""
    known = versions()
    return (
        f"{device.name}, torch {known['torch']}, {torch.get_num_threads() if device.is_cpu else known.get('cuda', '')}"
    )


@contextmanager
def _precise() -> Generator[None, None, None]:
    """Compute float32 as float32 (no TF32), without partial sums in half precision: the bounds are made for that."""
    matmul = torch.backends.cuda.matmul
    was = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    was_half = matmul.allow_fp16_reduced_precision_reduction
    torch.set_float32_matmul_precision("highest")
    matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(was[0])
        matmul.allow_bf16_reduced_precision_reduction = was[1]
        matmul.allow_fp16_reduced_precision_reduction = was_half


def gamma(k: int, unit: float) -> float:
    """Return the relative error of k roundings."""
    return k * unit / (1.0 - k * unit)


def product_bound(a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bound the error of a @ b, added up in float32 (float64 in float64), rounded to `dtype` once."""
    adds_in = torch.float64 if dtype == torch.float64 else torch.float32
    added = gamma(a.shape[1] + 2, _TRUNCATES * UNIT[adds_in]) * (a.abs() @ b.abs())
    return added + UNIT[dtype] * (exact.abs() + added) + _LEAST_NORMAL[dtype] * UNIT[dtype]


def sum_bound(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bound the error of the sum of each row of x (float64)."""
    return gamma(x.shape[-1] - 1, UNIT[dtype]) * x.abs().sum(-1)


def softmax_bound(x: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bound the error of softmax over the last dimension with the largest value subtracted.

    Blanchard, Higham, Higham, Accurately computing the log-sum-exp and softmax functions (IMA Journal of
    Numerical Analysis 41, 2021): the relative error grows with the number of addends and with how far a value
    lies below the largest.
    """
    below = x.amax(-1, keepdim=True) - x
    n = x.shape[-1]
    relative = UNIT[dtype] * (n + 2.0 * below.amax(-1, keepdim=True) + 3.0 * _EXP_ULPS + 4.0)
    return 2.0 * relative * exact + 2.0 * _LEAST_NORMAL[dtype]  # below, values may be flushed to zero


def layernorm_bound(x: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bound the error of (x - mean) / sqrt(variance + eps): first order in gamma, doubled for the rest."""
    n = x.shape[-1]
    g = gamma(n + 8, UNIT[dtype])
    spread = x.var(-1, unbiased=False, keepdim=True)
    of_mean = g * x.abs().mean(-1, keepdim=True) / spread.sqrt()
    of_spread = g * x.square().mean(-1, keepdim=True) / spread  # a variance as E[x^2] - E[x]^2 loses that much
    return 2.0 * (of_mean + exact.abs() * of_spread + 8.0 * UNIT[dtype] * exact.abs())
