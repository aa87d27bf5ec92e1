"""Run the study: `python -m bench.mutations [--n N] [--seed S] [--audit SCHEDULE] [--only PROGRAM ...]`.

`--healthy` trains the programs without an error: `--seeds` times each, `--steps` steps. `--jobs N` uses N processes.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context

from bench.mutations import study
from bench.mutations.programs import PROGRAMS
from bench.mutations.ranks import RANK_PROGRAMS
from bench.mutations.shares import PARTS, healthy, mutants
from bench.mutations.study import Mutant, Outcome


def main() -> int:
    """Train mutants of all programs, as many of each; print a line for each, and tables."""
    parser = argparse.ArgumentParser(prog="bench mutations", description=main.__doc__)
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--audit", default="every=1")
    parser.add_argument("--healthy", action="store_true", help="the programs without an error")
    parser.add_argument("--steps", type=int, default=study.N_STEPS, help="of a healthy program")
    parser.add_argument("--seeds", type=int, default=1, help="of each healthy program")
    parser.add_argument("--only", nargs="+", default=[*RANK_PROGRAMS, *PROGRAMS], metavar="PROGRAM")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    options = parser.parse_args()
    turns = [slice(i, None, options.jobs) for i in range(options.jobs)]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        if options.healthy:
            return _sum_up_healthy(options, list(pool.map(partial(healthy, options), turns)))
        return _sum_up(list(pool.map(partial(mutants, options), turns)))


def _sum_up(shares: Sequence[dict[str, list[Outcome]]]) -> int:
    for title in PARTS:
        outcomes = [outcome for share in shares for outcome in share[title]]
        if outcomes:
            _print_table(f"{title}, error", outcomes, lambda mutant: mutant.mutation)
            _print_table(f"{title}, program", outcomes, lambda mutant: mutant.program)
    return 0


def _print_table(title: str, outcomes: list[Outcome], key: Callable[[Mutant], str]) -> None:
    """A row for each key."""
    by_key: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        by_key[key(each.mutant)].append(each)
    print(f"\n| {title} | mutants | found | parameter right | step right |\n| --- | --- | --- | --- | --- |")
    for name, some in [*sorted(by_key.items()), ("all", outcomes)]:
        counts = [sum(getattr(each, word) for each in some) for word in ("is_found", "is_placed", "is_timed")]
        print(f"| {name} | {len(some)} | " + " | ".join(map(str, counts)) + " |", flush=True)


def _sum_up_healthy(options: argparse.Namespace, shares: Sequence[list[bool]]) -> int:
    is_warned = list(chain.from_iterable(shares))
    print(f"{len(is_warned) * options.steps} steps; runs with a warning or an error: {sum(is_warned)}")
    return int(any(is_warned))


if __name__ == "__main__":
    sys.exit(main())
