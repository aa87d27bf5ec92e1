"""Run the benchmark: `python -m bench.distributed [--ranks N] [--rounds N] [--pairs N] [--size NAME] [--write]`."""

from __future__ import annotations

import argparse
import sys

from bench.distributed.jobs import Cost, measure
from bench.distributed.sizes import SIZES
from bench.distributed.table import LIMIT, LIMIT_RANKS, is_over, page
from bench.overhead.pairs import ROOT

PAGE = ROOT / "docs" / "overhead-distributed.md"
RANKS = (2, 4, 8)


def main() -> int:
    """Measure, print the page, and say by the exit code (1) whether the limit was exceeded."""
    wanted = _arguments()
    costs: list[Cost] = []
    for n_ranks in wanted.ranks or RANKS:
        cost = measure(n_ranks, wanted.size, wanted.rounds, wanted.pairs)
        costs.append(cost)
        print(f"{n_ranks} ranks  {cost.failure or f'{cost.median:.3f}'}", file=sys.stderr, flush=True)
    text = page(costs, SIZES[wanted.size])
    print(text)
    if wanted.write:
        PAGE.write_text(text, encoding="utf-8")
    over = [cost for cost in costs if is_over(cost)]
    for cost in over:
        print(f"over the limit of {LIMIT}: {cost.failure or f'{cost.median:.3f}'}", file=sys.stderr)
    return 1 if over or any(cost.failure for cost in costs) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench distributed", description=main.__doc__)
    parser.add_argument(
        "--ranks", type=int, action="append", help=f"only this many (may be repeated); the limit is of {LIMIT_RANKS}"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each a new job (default 3)")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of blocks per round (default 6)")
    parser.add_argument("--size", choices=list(SIZES), default="usual", help="tiny: to see that it runs")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
