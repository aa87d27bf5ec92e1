"""The measured costs as the Markdown page docs/overhead.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.overhead.pairs import N_WARM_UP, Cost
from bench.overhead.tools import TOOLS, Tool
from bench.overhead.workloads import N_ROWS, N_TOKENS

_INTRODUCTION = """# Overhead

Written by `./scripts/bench overhead --write`; do not edit.

A number is the CPU time of a whole training step (forward, backward, AdamW) with the tool, divided by that of the same
step without it: 1.00 is free. It is the process's CPU time, all its threads counted, with one torch thread. Both sides
run in processes of their own (new ones each round) and take turns, the one that goes first changing each time; shown is
the median of the paired ratios and, in brackets, the smallest and the largest. On a CPU there is no queue to stall:
what a tool's `.item()` per tensor costs on an accelerator is not in these numbers.
"""


def page(costs: Mapping[str, Mapping[str, Cost]], n_rounds: int, n_pairs: int) -> str:
    """Render `{workload: {tool: cost}}`; the tools of the first workload make the rows."""
    return "\n".join([_INTRODUCTION, _facts(n_rounds, n_pairs), "", *_ratio_table(costs), "", *_side_table(costs), ""])


def over_budget(costs: Mapping[str, Mapping[str, Cost]]) -> list[str]:
    """One line for each of our levels that failed or cost more than its budget."""
    return [
        f"{tool} on {workload}: {cost.failure or f'{cost.median:.3f}, budget {budget:.2f}'}"
        for workload, by_tool in costs.items()
        for tool, cost in by_tool.items()
        if (budget := TOOLS[tool].budget) is not None and (cost.failure or cost.median > budget)
    ]


def _ratio_table(costs: Mapping[str, Mapping[str, Cost]]) -> list[str]:
    rows = [["tool", "budget", *(_heading(name, by_tool) for name, by_tool in costs.items())]]
    for tool in _tools(costs):
        budget = TOOLS[tool].budget
        cells = [_ratio(by_tool[tool], TOOLS[tool]) for by_tool in costs.values()]
        rows.append([TOOLS[tool].title, f"{budget:.2f}" if budget else "", *cells])
    return _markdown(rows)


def _side_table(costs: Mapping[str, Mapping[str, Cost]]) -> list[str]:
    rows = [["on the first workload", "peak memory, × plain", "written, KiB a step", "losses bit-identical to plain"]]
    first = next(iter(costs.values()))
    for tool in _tools(costs):
        cost = first[tool]
        if not cost.failure:
            same = "yes" if cost.has_same_bits else "**no**"
            rows.append([TOOLS[tool].title, f"{cost.peak_ratio:.2f}", f"{cost.written_kib:,.0f}", same])
    return _markdown(rows)


def _tools(costs: Mapping[str, Mapping[str, Cost]]) -> list[str]:
    return list(next(iter(costs.values())))


def _heading(workload: str, by_tool: Mapping[str, Cost]) -> str:
    measured = [cost for cost in by_tool.values() if not cost.failure]
    if not measured:
        return workload
    plain_ms = sorted(cost.plain_ms for cost in measured)[len(measured) // 2]
    return f"{workload} ({measured[0].n_parameters / 1e6:.1f} M, plain {plain_ms:.0f} ms)"


def _ratio(cost: Cost, tool: Tool) -> str:
    if cost.failure:
        return f"failed: `{cost.failure[:80]}`"
    verdict = "" if tool.budget is None or cost.median <= tool.budget else " **over budget**"
    digits = 3 if cost.median < 1.1 else 2
    return f"{cost.median:.{digits}f} ({min(cost.ratios):.2f}–{max(cost.ratios):.2f}){verdict}"


def _facts(n_rounds: int, n_pairs: int) -> str:
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "hypocenter"))
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    return (
        f"Measured {today} on {_processor()}, {os.cpu_count()} cores, {platform.system()},\n"
        f"Python {platform.python_version()}, {packages}.\n"
        f"{n_rounds} × {n_pairs} pairs a cell, each round after {N_WARM_UP} warm-up steps. "
        f"Batches of {N_ROWS} × {N_TOKENS} tokens "
        f"(T5: {N_TOKENS // 2} target tokens);\nbf16 is autocast over float32 parameters."
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from the source tree
        from hypocenter import __version__

        return __version__ if package == "hypocenter" else "unknown"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _markdown(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]
