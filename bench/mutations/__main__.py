"""Run the study: `python -m bench.mutations [--n N] [--seed S] [--audit SCHEDULE] [--only PROGRAM ...]`.

`--healthy` trains the programs without an error: `--seeds` times each, `--steps` steps.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import ModuleType

from bench.mutations import rank_study, study
from bench.mutations.programs import PROGRAMS
from bench.mutations.ranks import RANK_PROGRAMS
from bench.mutations.study import Mutant, Outcome, said

# Those of several ranks come first: a process that has trained cannot be forked any more.
PARTS: dict[str, tuple[ModuleType, Iterable[str]]] = {
    "several ranks": (rank_study, RANK_PROGRAMS),
    "one process": (study, PROGRAMS),
}


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
    options = parser.parse_args()
    rank_study.load()
    if options.healthy:
        return _healthy(options)
    n_programs = sum(len(list(programs)) for _, programs in PARTS.values())
    for title, (part, programs) in PARTS.items():
        n = round(options.n * len(list(programs)) / n_programs)
        outcomes = list(_outcomes(part, (m for m in part.draw(n, options.seed) if m.program in options.only), options))
        if outcomes:
            _print_table(f"{title}, error", outcomes, lambda mutant: mutant.mutation)
            _print_table(f"{title}, program", outcomes, lambda mutant: mutant.program)
    return 0


def _outcomes(part: ModuleType, mutants: Iterable[Mutant], options: argparse.Namespace) -> Iterable[Outcome]:
    for mutant in mutants:
        try:
            findings = part.found(mutant.program, mutant.seed, mutant, options.audit)
        except RuntimeError as error:  # a rank has failed: it counts as not found
            print(mutant, error)
            findings = []
        done = Outcome(mutant=mutant, findings=said(findings))
        _print_outcome(done)
        yield done


def _print_outcome(done: Outcome) -> None:
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


def _print_table(title: str, outcomes: list[Outcome], key: Callable[[Mutant], str]) -> None:
    """A row for each key."""
    by_key: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        by_key[key(each.mutant)].append(each)
    print(f"\n| {title} | mutants | found | parameter right | step right |\n| --- | --- | --- | --- | --- |")
    for name, some in [*sorted(by_key.items()), ("all", outcomes)]:
        counts = [sum(getattr(each, word) for each in some) for word in ("is_found", "is_placed", "is_timed")]
        print(f"| {name} | {len(some)} | " + " | ".join(map(str, counts)) + " |", flush=True)


def _healthy(options: argparse.Namespace) -> int:
    n_bad = n_steps = 0
    for part, programs in PARTS.values():
        for program in (each for each in programs if each in options.only):
            for seed in range(options.seed, options.seed + options.seeds):
                found = part.found(program, seed, None, options.audit, options.steps)
                n_steps += options.steps
                n_bad += any(f.severity in ("warning", "error") for f in found)
                print(program, seed, [(f.code, f.severity, f.step, f.title) for f in found], flush=True)
    print(f"{n_steps} steps; runs with a warning or an error: {n_bad}")
    return int(n_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
