"""Run the study: `python -m bench.mutations [--n N] [--seed S] [--audit SCHEDULE] [--healthy]`."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.mutations.programs import PROGRAMS
from bench.mutations.study import Outcome, draw, outcome, train


def main() -> int:
    """Print a row for each error, then the shares."""
    parser = argparse.ArgumentParser(prog="bench mutations", description=main.__doc__)
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--audit", default="every=1")
    parser.add_argument("--healthy", action="store_true", help="the programs without an error")
    options = parser.parse_args()
    if options.healthy:
        return _healthy(options.seed, options.audit)
    outcomes: list[Outcome] = []
    for mutant in draw(options.n, options.seed):
        done = outcome(mutant, options.audit)
        outcomes.append(done)
        print_outcome(done)
    print_table(outcomes)
    return 0


def print_outcome(done: Outcome) -> None:
    """One line."""
    mutant, where = done.mutant, done.mutant.where
    codes = ", ".join(f"{f.code}@{f.step} {f.severity} {f.param or f.site}" for f in done.findings) or "nothing"
    right = zip("fps", (done.is_found, done.is_placed, done.is_timed), strict=True)
    marks = "".join(mark if is_so else "-" for mark, is_so in right)
    once = "once" if where.is_once else "on"
    print(
        f"{marks} {mutant.mutation:28} {mutant.program:15} {where.step:3} {once:4} {where.name:20} -> {codes}",
        flush=True,
    )


def print_table(outcomes: list[Outcome]) -> None:
    """A row for each error."""
    by_error: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        by_error[each.mutant.mutation].append(each)
    print("\n| error | mutants | found | parameter right | step right |\n| --- | --- | --- | --- | --- |")
    for name, some in [*sorted(by_error.items()), ("all", outcomes)]:
        counts = [sum(getattr(each, word) for each in some) for word in ("is_found", "is_placed", "is_timed")]
        print(f"| {name} | {len(some)} | " + " | ".join(map(str, counts)) + " |")


def _healthy(seed: int, audit: str) -> int:
    n_bad = 0
    for program in PROGRAMS:
        with TemporaryDirectory() as folder:
            found = train(program, seed, Path(folder) / "run", None, audit)
        bad = [f for f in found if f.severity in ("warning", "error")]
        n_bad += bool(bad)
        print(program, [(f.code, f.step, f.title) for f in found])
    return int(n_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
