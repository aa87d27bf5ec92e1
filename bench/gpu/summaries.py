"""Compare what Triton's kernels, torch's operators and the CPU say of the same numbers.

`python -m bench.gpu.summaries cuda` prints a line of JSON for each row of the table. On `cpu` with TRITON_INTERPRET=1
the same is done in Triton's interpreter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from bench.gpu.rows import Row
from hypocenter.nouns import Summary
from hypocenter.summary.reducers import torch_triton
from hypocenter.summary.reducers.torch import TorchReducer, summarize

FLOATS = (
    "float32",
    "bfloat16",
    "float16",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
PATTERNS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
INTEGERS = ("int64", "int32", "int8", "uint8", "bool")
CLOSE = 1e-12  # of sums in float64, relative to the sum of magnitudes that Cauchy and Schwarz allow
SIZES = {"cuda": (1, 511, 513, 1023, 1025, 70_001, (1 << 20) + 3, 1 << 22), "cpu": (1, 513, 1025)}
TIMED = {"cuda": (1 << 27, 6), "cpu": (1 << 10, 1)}  # elements, and how often: the first time compiles


def main() -> int:
    """Rows for the kind of device that is named."""
    kind = sys.argv[1]
    device = torch.device(kind)
    served = torch_triton.serves(device, torch.float32)
    show("Triton", "serves" if served else "not there: torch's operators are used", "measured", None)
    if not served:
        return 0
    compare(device)
    if kind == "cuda":
        wait_for_nothing(device)
        follow_streams(device)
    measure(device)
    show("failures of Triton", " ".join(torch_triton._why_off)[:160] or "none", "none", not torch_triton._why_off)
    return 0


def show(what: str, seen: str, expected: str, is_ok: bool | None) -> None:
    """A row."""
    print(json.dumps(dataclasses.asdict(Row(what=what, seen=seen, expected=expected, is_ok=is_ok))), flush=True)


def compare(device: torch.device) -> None:
    """Every field of the full summary with the CPU's, and of the sampled one with that of torch's operators."""
    wrong, wrong_sampled, n = list[str](), list[str](), 0
    for name, values in made(device.type):
        n += 1
        on_device = values.to(device)
        if not is_same(reduced(on_device, "full"), summarize(values)):
            wrong.append(name)
        by_triton = reduced(on_device, "sample")
        with without_triton():
            by_torch = reduced(on_device, "sample")
        if values.dtype != torch.float64 and not is_same(by_triton, by_torch, close=3e-3):
            wrong_sampled.append(name)
    for what, found in (("all fields, and the CPU's", wrong), ("a sample's, and torch's operators'", wrong_sampled)):
        show(what, f"{n - len(found)} of {n} equal {' '.join(found)[:120]}".strip(), "all", not found)


def made(kind: str) -> Iterator[tuple[str, Tensor]]:
    """Numbers of every format, any bit pattern among them, and views of them."""
    generator = torch.Generator().manual_seed(0)
    for name in FLOATS:
        dtype = getattr(torch, name)
        for n in SIZES[kind]:
            bits = torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)
            values = bits.to(PATTERNS[dtype.itemsize]).view(dtype)
            if dtype is torch.float64:
                values = torch.where(values.abs() > 1e150, torch.inf, values)
            yield f"{name}[{n}]", values
            yield f"randn {name}[{n}]", torch.randn(n, generator=generator).to(dtype)
    for name in INTEGERS:
        for n in SIZES[kind]:
            yield f"{name}[{n}]", torch.randint(0, 100, (n,), generator=generator).to(getattr(torch, name))
    matrix = torch.randn(60, 70, generator=generator)
    yield from (("transposed", matrix.T), ("strided", matrix[::2, 1::3]), ("shifted", matrix.view(-1)[7:]))


def reduced(values: Tensor, histogram: str) -> Summary:
    """By the reducer that a run uses."""
    reducer = TorchReducer("full" if histogram == "full" else "sample", defer_cpu=True)
    reducer.add(values)
    return reducer.drain()[0]


def is_same(a: Summary, b: Summary, close: float = CLOSE) -> bool:
    """Equal integers and extremes, and sums that are close."""
    names = {each.name for each in dataclasses.fields(Summary)} - {"sum", "sumsq", "sketch"}
    added = math.sqrt(b.n) * math.sqrt(b.sumsq) + b.absmax
    return (
        all(getattr(a, name) == getattr(b, name) for name in names)
        and math.isclose(a.sumsq, b.sumsq, rel_tol=close, abs_tol=1e-300)
        and abs(a.sum - b.sum) <= close * added
    )


@contextlib.contextmanager
def without_triton() -> Generator[None, None, None]:
    """By torch's operators."""
    serves = torch_triton.serves
    torch_triton.serves = lambda device, dtype: False
    try:
        yield
    finally:
        torch_triton.serves = serves


def wait_for_nothing(device: torch.device) -> None:
    """Nothing waits for the device until `drain`."""
    values = torch.randn(1 << 20, device=device)
    reducer = TorchReducer("full")
    torch.cuda.set_sync_debug_mode("error")
    try:
        reducer.add(values)
        said = "none"
    except RuntimeError as error:
        said = str(error)[:120]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    is_whole = reducer.drain()[0].n_hist == values.numel()
    show("syncs in `add`", said if is_whole else "it gave up", "none", said == "none" and is_whole)


def follow_streams(device: torch.device) -> None:
    """Values that another stream makes late are read after it has, when that is the current stream."""
    reducer, stream = TorchReducer("full"), torch.cuda.Stream(device)
    large = torch.randn(4096, 4096, device=device)
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream(device))
        values = torch.zeros(1 << 20, device=device)
        for _ in range(20):
            large = large @ large
        values.fill_(2.0)
        reducer.add(values)
    total = reducer.drain()[0].sum
    show("on another stream", f"sum {total}", f"{2.0 * (1 << 20)}", total == 2.0 * (1 << 20))


def measure(device: torch.device) -> None:
    """Bytes a second, each way, of a tensor that fits in no cache."""
    n = TIMED[device.type][0]
    for dtype in (torch.bfloat16, torch.float32):
        values = torch.randn(n, device=device).to(dtype)
        n_bytes = n * dtype.itemsize
        by_triton = seconds(device, lambda v=values: TorchReducer(defer_cpu=True).add(v))
        in_full = seconds(device, lambda v=values: TorchReducer("full", defer_cpu=True).add(v))
        with without_triton():
            by_torch = seconds(device, lambda v=values: TorchReducer(defer_cpu=True).add(v))
        norm = seconds(device, lambda v=values: torch.linalg.vector_norm(v, dtype=torch.float32))
        named = {"Triton": by_triton, "with the whole histogram": in_full, "torch": by_torch, "vector_norm": norm}
        told = ", ".join(f"{name} {n_bytes / spent / 1e9:.3g}" for name, spent in named.items())
        show(f"GB/s, {str(dtype)[6:]}", told, "measured", None)


def seconds(device: torch.device, launch: Callable[[], object]) -> float:
    """The least of some rounds."""
    best = math.inf
    for _ in range(TIMED[device.type][1]):
        _wait(device)
        began = time.perf_counter()
        launch()
        _wait(device)
        best = min(best, time.perf_counter() - began)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
