"""Run the benchmark: `python -m bench.step [--model NAME] [--level LEVEL] [--pairs N] [--warm-up STEPS]`.

In one process for each model, blocks of plain steps and of watched steps take turns; each watched block follows a plain
one, and what a step costs more is the median over these pairs. CPU time of all threads, so a busy machine disturbs it
little. A block is as long as the longest turn of the checks that take turns, so each holds the same share of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

from bench.step.cost import N_WARM_UP, measure
from bench.step.models import MODELS


def main() -> int:
    """Print a row for each model; the exit code is 1 where `sentinel` costs more than it may."""
    parser = argparse.ArgumentParser(prog="bench step", description=main.__doc__)
    parser.add_argument("--model", action="append", choices=list(MODELS), help="only this one (may be repeated)")
    parser.add_argument("--level", default="sentinel")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of blocks (default 8)")
    parser.add_argument("--warm-up", type=int, default=N_WARM_UP, help="watched steps before those that are timed")
    options = parser.parse_args()
    print(f"{'model':8} {'parameters':>10} {'plain ms':>9} {'more ms':>9} {'budget ms':>9} {'audited':>8}")
    is_over = False
    for name in options.model or MODELS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cost = pool.apply(measure, (name, options.level, options.pairs, options.warm_up))
        is_over |= options.level == "sentinel" and cost.more_ms > cost.budget_ms
        costs = f"{cost.plain_ms:9.2f} {cost.more_ms:9.3f} {cost.budget_ms:9.3f} {cost.audited_times:7.2f}x"
        row = f"{name:8} {cost.n_parameters:10} {costs}"
        print(row if options.level == "sentinel" else f"{row}  {1000 * cost.more_ms / cost.n_calls:.1f} us a call")
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
