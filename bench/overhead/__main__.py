"""Run the benchmark: `python -m bench.overhead [--workload NAME] [--tool NAME] [--rounds N] [--pairs N] [--write]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.overhead.measured import Costs, keep, kept
from bench.overhead.pairs import ROOT, Cost, compare
from bench.overhead.table import over_budget, page
from bench.overhead.tools import TOOLS, tools_for
from bench.overhead.workloads import NAMES, SCALED

PAGE = ROOT / "docs" / "overhead.md"


def main(workloads: Sequence[str] = NAMES) -> int:
    """Measure what was asked for, print the page, and say by the exit code (1) whether a budget was exceeded."""
    wanted = _arguments(workloads)
    costs: Costs = {}
    for workload in wanted.workload:
        for tool in wanted.tool or tools_for(workload):
            cost = _measure(workload, tool, wanted)
            costs.setdefault(workload, {})[tool] = cost
            if wanted.write:
                keep(workload, tool, cost)
            print(f"{workload:10} {tool:16} {cost.failure or f'{cost.median:.3f}'}", file=sys.stderr, flush=True)
    text = page(kept() if wanted.write else costs)
    print(text)
    if wanted.write:
        PAGE.write_text(text, encoding="utf-8")
    for line in (exceeded := over_budget(costs)):
        print(f"over budget: {line}", file=sys.stderr)
    return 1 if exceeded else 0


def _measure(workload: str, tool: str, wanted: argparse.Namespace) -> Cost:
    if TOOLS[tool].needs_msprobe and not wanted.msprobe_python:
        return Cost(failure="not installed (--msprobe-python)")
    python = wanted.msprobe_python if TOOLS[tool].needs_msprobe else sys.executable
    return compare(workload, tool, wanted.rounds, TOOLS[tool].n_pairs(wanted.pairs), python)


def _arguments(workloads: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench overhead", description=main.__doc__)
    parser.add_argument(
        "--workload", action="append", choices=(*NAMES, *SCALED), help="only this one (may be repeated)"
    )
    parser.add_argument("--tool", action="append", choices=list(TOOLS), help="only this one (may be repeated)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds per cell, in new processes (default 4)")
    parser.add_argument(
        "--pairs",
        type=int,
        default=6,
        help="pairs of blocks per round (default 6); a third where a tool may cost more than 10 %%",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"keep the cells, and write all kept ones to {PAGE.relative_to(ROOT)}"
    )
    parser.add_argument("--msprobe-python", help="a Python that has torch, transformers and mindstudio-probe")
    wanted = parser.parse_args()
    wanted.workload = wanted.workload or list(workloads)
    return wanted


if __name__ == "__main__":
    sys.exit(main())
