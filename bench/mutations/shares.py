"""Do a part of the study in this process: every n-th mutant, or healthy program."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
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


def mutants(options: argparse.Namespace, turn: slice) -> dict[str, list[Outcome]]:
    """Train those whose turn it is, of each part."""
    rank_study.load()
    n_programs = sum(len(list(programs)) for _, programs in PARTS.values())
    found: dict[str, list[Outcome]] = {}
    for title, (part, programs) in PARTS.items():
        n = round(options.n * len(list(programs)) / n_programs)
        drawn = [mutant for mutant in part.draw(n, options.seed) if mutant.program in options.only]
        found[title] = list(_outcomes(part, drawn[turn], options))
    return found


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


def healthy(options: argparse.Namespace, turn: slice) -> list[bool]:
    """Train the programs whose turn it is; return for each whether it was warned of."""
    rank_study.load()
    is_warned: list[bool] = []
    for part, programs in PARTS.values():
        seeds = range(options.seed, options.seed + options.seeds)
        runs = [(program, seed) for program in programs if program in options.only for seed in seeds]
        for program, seed in runs[turn]:
            found = part.found(program, seed, None, options.audit, options.steps)
            is_warned.append(any(f.severity in ("warning", "error") for f in found))
            print(program, seed, [(f.code, f.severity, f.step, f.title) for f in found], flush=True)
    return is_warned
