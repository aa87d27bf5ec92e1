"""Draw mutants of programs of several ranks: `python -m bench.mutations.rank_study [--n N] [--seed S] [--healthy]`."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import torch

from bench.mutations.__main__ import print_outcome, print_table
from bench.mutations.forked import run_ranks
from bench.mutations.mutations import MUTATIONS, NEEDS_MICRO, Where
from bench.mutations.programs import Net
from bench.mutations.ranks import RANK_MUTATIONS, RANK_PROGRAMS, REPLICATED_ONLY, SHARED, SIZE
from bench.mutations.study import FIRST, LAST, N_STEPS, Mutant, Outcome, said
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_MICRO = {"by_hand": 2, "ddp": 2, "fsdp": 2, "tensor_parallel": 2}
CUT = ("up.weight", "up.bias", "down.weight")  # over ranks, in tensor_parallel


def draw(n: int, seed: int) -> Iterator[Mutant]:
    """Mutants in which programs, errors, steps and parameters are spread evenly."""
    rng = random.Random(seed)
    errors = [*RANK_MUTATIONS, *SHARED]
    rng.shuffle(errors)
    parameters = [name for name, _ in Net().named_parameters()]
    for number in range(n):
        error = errors[number % len(errors)]
        fits = sorted(RANK_MUTATIONS[error][1]) if error in RANK_MUTATIONS else list(RANK_PROGRAMS)
        if error in NEEDS_MICRO:
            fits = [program for program in fits if program in N_MICRO]
        program = rng.choice(fits)
        names = ["bias" if name == "down.bias" and program == "tensor_parallel" else name for name in parameters]
        if program == "tensor_parallel" and error in REPLICATED_ONLY:
            names = [name for name in names if name not in CUT]
        if program == "zero" and error not in RANK_MUTATIONS:
            names = names[::SIZE]  # what rank 0 updates
        where = Where(
            step=rng.randint(FIRST, LAST), name=(name := rng.choice(names)), other=name, is_once=rng.random() < 0.5,
            microbatch=rng.randrange(N_MICRO.get(program, 1)),
        )  # fmt: skip
        yield Mutant(program=program, mutation=error, where=where, seed=rng.randrange(1 << 30))


def train(program: str, seed: int, mutant: Mutant | None) -> None:
    """On one rank."""
    torch.manual_seed(seed)
    made = RANK_PROGRAMS[program]()
    if mutant is not None:
        plant = MUTATIONS.get(mutant.mutation) or RANK_MUTATIONS[mutant.mutation][0]
        plant(made, mutant.where)
    made.train(N_STEPS)


def found(program: str, seed: int, mutant: Mutant | None, audit: str) -> list[Finding]:
    """What is said."""
    folder = Path(mkdtemp())  # a TemporaryDirectory would go with the first child that ends
    try:
        run_ranks(SIZE, folder / "run", {"audit": audit}, lambda: train(program, seed, mutant))
        if mutant is None:
            print((folder / "said").read_text())
        return list(diagnose(open_run(folder / "run")).findings)
    finally:
        rmtree(folder)


def main() -> int:
    """Print a row for each mutant, then the shares."""
    parser = argparse.ArgumentParser(prog="bench mutations of ranks", description=main.__doc__)
    parser.add_argument("--n", type=int, default=52)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--audit", default="every=1")
    parser.add_argument("--healthy", action="store_true", help="the programs without an error")
    parser.add_argument("--only", default="", help="a program")
    options = parser.parse_args()
    import torch._dynamo  # each rank would load it by itself

    import hypocenter.session  # noqa: F401

    torch.set_num_threads(1)
    if options.healthy:
        for program in RANK_PROGRAMS:
            if options.only in ("", program):
                findings = found(program, options.seed, None, options.audit)
                print(program, [(f.code, f.severity, f.step, f.title) for f in findings], flush=True)
        return 0
    outcomes: list[Outcome] = []
    for mutant in draw(options.n, options.seed):
        if options.only in ("", mutant.program):
            try:
                findings = found(mutant.program, mutant.seed, mutant, options.audit)
            except RuntimeError as error:
                print(mutant, error)
                continue
            outcomes.append(Outcome(mutant=mutant, findings=said(findings)))
            print_outcome(outcomes[-1])
    print_table(outcomes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
