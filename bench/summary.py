"""What a summary costs on one CPU core, beside what people write instead. Run: `python bench/summary.py [--json]`.

Each round runs every contender once, in rotating order, so that a slow moment of the machine hits all of them; a ratio
is the median over rounds of (contender / vector_norm in the same round). Process CPU time, one thread. A contender gets
a step's worth of different tensors (at most 64 MiB), which is colder than in training, where a tensor was just written.
The reducer's time includes its drain.

`fields` are those of a Summary without the histogram: a loop in C would find them in one sweep, torch's operators in
four. What each of these takes by itself stands behind it (the fourth is vector_norm): in a tensor larger than the cache
each is as slow as memory, and in `fields` the first one; the others find what it has brought.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from hypocenter.summary.reducers.torch import TorchReducer, moments_of, summarize
from hypocenter.summary.reducers.torch_exact import CHUNK

SIZES = (1_000, 10_000, 1_000_000, 10_000_000)  # elements
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDS = 11
STEP_BYTES = 64 << 20
MAX_TENSORS = 500  # about what a T5 with 60 M parameters shows at level `modules`


def naive(tensors: list[Tensor]) -> None:
    """The check that everybody writes first."""
    for t in tensors:
        t.isfinite().all().item()


def chain(tensors: list[Tensor]) -> None:
    """The usual statistics, one call each."""
    for t in tensors:
        wide = t.float()
        for value in (t.isnan().sum(), t.isinf().sum(), t.min(), t.max(), wide.mean(), wide.norm(), (t == 0).sum()):
            value.item()


def norm(tensors: list[Tensor]) -> None:
    """The least that can find a NaN at all."""
    for t in tensors:
        torch.linalg.vector_norm(t, dtype=torch.float32).item()


_REDUCER = TorchReducer()


def reducer(tensors: list[Tensor]) -> None:
    """TorchReducer, drained once."""
    for t in tensors:
        _REDUCER.add(t)
    _REDUCER.drain()


def fields(tensors: list[Tensor]) -> None:
    """All that a Summary says without the histogram."""
    for t in tensors:
        moments_of(t, t.numel())


def _sweep(of: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], None]:
    """One operator, in the pieces that `fields` takes."""

    def run(tensors: list[Tensor]) -> None:
        for t in tensors:
            for piece in t.split(CHUNK):
                of(piece)

    return run


def exact(tensors: list[Tensor]) -> None:
    """summarize, with the histogram of all elements."""
    for t in tensors:
        summarize(t)


CONTENDERS: dict[str, Callable[[list[Tensor]], None]] = {
    "vector_norm": norm, "fields": fields, "min": _sweep(torch.amin), "max": _sweep(torch.amax),
    "sum": _sweep(torch.sum), "to float32": _sweep(Tensor.float), "reducer": reducer, "isfinite": naive,
    "chain": chain, "exact": exact,
}  # fmt: skip


def cpu_seconds(run: Callable[[list[Tensor]], None], tensors: list[Tensor]) -> float:
    """Process CPU time of one run."""
    start = time.process_time()
    run(tensors)
    return time.process_time() - start


def measure(dtype: torch.dtype, size: int) -> dict[str, dict[str, float]]:
    """ns per element, us per tensor, and the ratio to vector_norm, for every contender."""
    count = max(1, min(MAX_TENSORS, STEP_BYTES // (size * dtype.itemsize)))
    tensors = [torch.randn(size).to(dtype) for _ in range(count)]
    names = list(CONTENDERS)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        CONTENDERS[name](tensors)
    for turn in range(ROUNDS):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(cpu_seconds(CONTENDERS[name], tensors))
    return {
        name: {
            "ns_per_element": statistics.median(spent) / count / size * 1e9,
            "us_per_tensor": statistics.median(spent) / count * 1e6,
            "ratio": statistics.median(a / b for a, b in zip(spent, seconds["vector_norm"], strict=True)),
        }
        for name, spent in seconds.items()
    }


def main() -> None:
    """Print one line per dtype, size and contender, or all of them as JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = {(dtype, size): measure(dtype, size) for dtype in DTYPES for size in SIZES}
    if "--json" in sys.argv[1:]:
        print(json.dumps({f"{str(dtype)[6:]}/{size}": row for (dtype, size), row in rows.items()}, indent=1))
        return
    print("ns per element, and in brackets the speed beside vector_norm: 2.00 is twice as fast")
    print(f"{'dtype':9} {'elements':>9}" + "".join(f"{name:>16}" for name in CONTENDERS))
    for (dtype, size), row in rows.items():
        cells = "".join(f"{cell['ns_per_element']:9.3f} ({1 / cell['ratio']:4.2f})" for cell in row.values())
        print(f"{str(dtype)[6:]:9} {size:9}{cells}")


if __name__ == "__main__":
    main()
