"""The measured costs as the Markdown page docs/overhead.md."""

from __future__ import annotations

from collections.abc import Mapping

from bench.overhead.measured import machine
from bench.overhead.pairs import Cost
from bench.overhead.tools import TOOLS, Tool
from bench.overhead.worker import N_TIMED, N_WARM_UP
from bench.overhead.workloads import INIT_SCALE, N_ROWS, N_SCALED_ROWS, N_SCALED_TOKENS, N_TOKENS, SCALED

_INTRODUCTION = """# Overhead

Written by `./scripts/bench overhead --write`; do not edit.

A number is the CPU time of whole training steps (forward, backward, AdamW) with the tool, divided by that of the same
steps without it: 1.00 is free. It is the process's CPU time, all its threads counted, with one torch thread. Blocks of
steps with the tool and without it take turns, the one that goes first changing each time; shown is the median of the
paired ratios and, in brackets, the smallest, the largest and how many there are. A tool that can be taken off again is
compared within one process; the others (DebugUnderflowOverflow, msprobe) with a second process, which adds a few per
cent of noise either way. On a CPU there is no queue to stall: what a tool's `.item()` per tensor costs on an
accelerator is not in these numbers. Other tools, measured in an earlier way: [beside other tools](overhead-peers.md).
"""

_SCALED = f"""
## Under a loss scaler

The same models in float16 autocast with `torch.amp.GradScaler("cpu", init_scale={INIT_SCALE:g})`, gradients finite at
every step. Batches of {N_SCALED_ROWS} × {N_SCALED_TOKENS} tokens: a CPU without float16 units takes 20 s for a batch of
the table above, and what is checked at a step depends on the parameters alone.
"""


def page(costs: Mapping[str, Mapping[str, Cost]]) -> str:
    """Render `{workload: {tool: cost}}`; the tools of the first workload of a table make its rows."""
    plain = {name: by_tool for name, by_tool in costs.items() if name not in SCALED}
    scaled = {name: by_tool for name, by_tool in costs.items() if name in SCALED}
    lines = [_INTRODUCTION, _facts(costs), ""]
    if plain:
        lines += [*_ratio_table(plain), "", *_side_table(plain, "losses"), ""]
    if scaled:
        lines += [_SCALED, *_ratio_table(scaled), "", *_side_table(scaled, "losses and weights"), ""]
    return "\n".join(lines)


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
        cells = [_ratio(by_tool[tool], TOOLS[tool]) if tool in by_tool else "" for by_tool in costs.values()]
        rows.append([TOOLS[tool].title, f"{budget:.2f}" if budget else "", *cells])
    return _markdown(rows)


def _side_table(costs: Mapping[str, Mapping[str, Cost]], same: str) -> list[str]:
    rows = [["on the first workload", "peak memory, × plain", "written, KiB a step", f"{same} bit-identical to plain"]]
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
    return f"{cost.median:.{digits}f} ({min(cost.ratios):.2f}–{max(cost.ratios):.2f}, {len(cost.ratios)}){verdict}"


def _facts(costs: Mapping[str, Mapping[str, Cost]]) -> str:
    days = sorted({cost.measured for by_tool in costs.values() for cost in by_tool.values()})
    return (
        f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))} on {machine()}.\n"
        f"A pair is two blocks of {N_TIMED} steps, {N_WARM_UP} untimed steps before each. "
        f"Batches of {N_ROWS} × {N_TOKENS} tokens (T5: {N_TOKENS // 2} target\ntokens); "
        "bf16 is autocast over float32 parameters."
    )


def _markdown(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]
