"""How long collectives take, and what each rank adds to it by itself: the others' waiting says nothing about them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hypocenter.examine.collectives import OPS, Case, Group, done, launch

_REPEATS, _WARM_UP = 7, 2
_BYTES_ON_CPU, _BYTES_ON_DEVICE = 1 << 22, 1 << 27
BUS_FACTOR = {  # bytes on the busiest wire for each byte of the result, n ranks (nccl-tests, doc/PERFORMANCE.md)
    "all-reduce": lambda n: 2.0 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
}


def core_wait_ms() -> float | None:
    """Return how long (ms) this thread has waited for a core so far: on a loaded machine no fault of the rank.

    Linux only (/proc/PID/schedstat, second field, nanoseconds); None elsewhere.
    """
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e6
    except (OSError, ValueError, IndexError):
        return None


def examine(group: Group, at: Callable[[str], None], out: dict[str, Any], go: Callable[[str], bool]) -> None:
    """Time each collective: {op: {"n_bytes", "bus_gib_s", "launch_ms", "core_wait_ms", "total_ms"}}, by repeat."""
    n_bytes = _BYTES_ON_CPU if group.device.is_cpu else _BYTES_ON_DEVICE
    for op in OPS:
        n = n_bytes // 4 // (1 if op == "all-reduce" else group.size)
        case = Case(op=op, dtype=torch.float32, n_elements=n)
        size = n * (group.size if op in ("reduce-scatter", "all-to-all") else 1)
        mine = torch.ones(size, device=group.device.torch)
        times: dict[str, list[float]] = {"launch_ms": [], "core_wait_ms": [], "total_ms": []}
        for repeat in range(_WARM_UP + _REPEATS):
            if not go(f"pace/{op}/{repeat}"):
                return
            measured = _once(case, group, mine, at)
            if repeat >= _WARM_UP:
                for name, value in measured.items():
                    times[name].append(value)
        fastest_s = min(times["total_ms"]) / 1000.0
        rate = n_bytes / 2**30 / fastest_s * BUS_FACTOR[op](group.size)
        out[op] = {"n_bytes": n_bytes, "bus_gib_s": rate, **times}


def barrier(group: Group, at: Callable[[str], None], out: dict[str, Any]) -> None:
    """Run some barriers and time them: {"us": the median, "n": how many}."""
    taken: list[float] = []
    for _ in range(10):
        at("waiting in a barrier")
        started = time.perf_counter()
        done(dist.barrier(async_op=True), group)
        taken.append((time.perf_counter() - started) * 1e6)
    out.update(us=sorted(taken)[len(taken) // 2], n=len(taken))


def _once(case: Case, group: Group, mine: torch.Tensor, at: Callable[[str], None]) -> dict[str, float]:
    at(f"waiting in the barrier before {case.op}")
    done(dist.barrier(async_op=True), group)
    at(f"starting a timed {case.op}")
    waited, started = core_wait_ms(), time.perf_counter()
    work, _ = launch(case, group, mine)
    launched, waited_after = time.perf_counter(), core_wait_ms()
    at(f"waiting in a timed {case.op}")
    done(work, group)
    ended = time.perf_counter()
    lost = waited_after - waited if waited is not None and waited_after is not None else 0.0
    return {
        "launch_ms": (launched - started) * 1e3, "core_wait_ms": lost, "total_ms": (ended - started) * 1e3,
    }  # fmt: skip
