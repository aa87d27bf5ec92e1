"""Run the study: `python -m bench.spikes [--n OF_EACH] [--seed S] [--harmless | --healthy STEPS] [--kind WORD]`."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

from bench.spikes.healthy import HEALTHY
from bench.spikes.kinds import KINDS
from bench.spikes.study import Outcome, draw, draw_harmless, outcome, said_of, said_of_healthy


def main() -> int:
    """Print a line for each program, then the shares."""
    parser = argparse.ArgumentParser(prog="bench spikes", description=main.__doc__)
    parser.add_argument("--n", type=int, default=5, help="jumps of each kind; with --harmless, of all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--harmless", action="store_true", help="changes that are to accuse nobody")
    parser.add_argument(
        "--healthy",
        type=int,
        default=0,
        metavar="STEPS",
        help="ten programs that nothing is wrong in",
    )
    parser.add_argument("--kind", default="", help="only kinds whose name holds this")
    parser.add_argument("-v", action="store_true", help="all that was said of what is wrong")
    options = parser.parse_args()
    if options.healthy:
        return _healthy(options.healthy, options.seed, options.kind)
    if options.harmless:
        return _harmless(options.n, options.seed, options.kind)
    outcomes = [done for kind in KINDS if options.kind in kind for done in _of_kind(kind, options)]
    print_table(outcomes)
    return 0


def _of_kind(kind: str, options: argparse.Namespace) -> Iterator[Outcome]:
    """As many as are asked for that jump, of at most eight times as many that are tried."""
    n = 0
    for mutant in itertools.islice(draw(kind, options.seed), 8 * options.n):
        if n == options.n:
            return
        done = outcome(mutant)
        if done is None:
            print(f"     {kind:32} {mutant.program:12} does not jump", flush=True)
            continue
        n += 1
        print_outcome(done, is_long=options.v)
        yield done


def print_outcome(done: Outcome, *, is_long: bool) -> None:
    """One line."""
    mutant, how = done.mutant, done.mutant.how
    rights = (done.is_timed, done.is_placed, done.is_sample_right)
    marks = "".join(" " if is_so is None else mark if is_so else "-" for mark, is_so in zip("tps", rights, strict=True))
    f = done.at_step
    text = f.source.text.strip()[-60:] if f is not None and f.source is not None else ""
    said = f"{f.severity} {f.cause} {f.site} {f.op} {f.param} {f.samples} {text}" if f is not None else "nothing"
    flags = f"{'clip' if how.clip else '':4} {how.amp:4} x{how.n_micro}"
    where = f"{mutant.where.step:2} {mutant.where.place:14} row {mutant.where.row:2} /{mutant.where.microbatch}"
    print(f"{marks} {mutant.kind:32} {mutant.program:12} {flags} {where} {done.factor:8.3g}x -> {said}", flush=True)
    if is_long and "-" in marks:
        for each in done.findings:
            print("      ", each.code, each.severity, each.step, each.cause, each.title, *each.why, sep=" | ")


def print_table(outcomes: list[Outcome]) -> None:
    """A row for each kind."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for each in outcomes:
        by_kind[each.mutant.kind].append(each)
    print("\n| kind | jumps | step right | place right | sample right |\n| --- | --- | --- | --- | --- |")
    for name, some in [*sorted(by_kind.items()), ("all", outcomes)]:
        shares = [
            _share([getattr(each, word) for each in some]) for word in ("is_timed", "is_placed", "is_sample_right")
        ]
        print(f"| {name} | {len(some)} | " + " | ".join(shares) + " |")


def _share(rights: list[bool | None]) -> str:
    asked = [right for right in rights if right is not None]
    return f"{sum(asked)} of {len(asked)}" if asked else ""


def _healthy(n_steps: int, seed: int, word: str) -> int:
    n_bad = n_notes = n_all = 0
    for name in HEALTHY:
        if word not in name:
            continue
        began = time.process_time()
        found = said_of_healthy(name, n_steps, seed)
        bad = [f for f in found if f.severity in ("warning", "error")]
        n_bad, n_notes, n_all = n_bad + len(bad), n_notes + len(found) - len(bad), n_all + n_steps
        print(f"{name:24} {n_steps:,} steps, {time.process_time() - began:.0f} s of CPU: {len(found)} said", flush=True)
        for f in found:
            print("      ", f.code, f.severity, f.step, f.count, f.cause, f.title, *f.why, sep=" | ", flush=True)
    print(f"\n{n_all:,} steps: {n_bad} warnings, {n_notes} notes")
    return int(n_bad > 0)


def _harmless(n: int, seed: int, word: str) -> int:
    n_bad = n_notes = n_all = 0
    for mutant in draw_harmless(n, seed):
        if word not in mutant.kind:
            continue
        n_all += 1
        found = said_of(mutant)
        bad = [f for f in found if f.severity in ("warning", "error")]
        n_bad, n_notes = n_bad + bool(bad), n_notes + bool(found)
        print(
            f"{'-' if bad else ' '} {mutant.kind:28} {mutant.program:12} {mutant.how} {mutant.where.step}",
            [(f.code, f.severity, f.step, f.cause, f.title, f.source.text if f.source else "") for f in found],
            flush=True,
        )
    print(f"\n{n_all} programs with a harmless change: {n_bad} warned of, {n_notes} noted")
    return int(n_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
