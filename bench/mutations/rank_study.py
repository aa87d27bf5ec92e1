"""Draw mutants of programs of several ranks, train each on forked ranks, and see what is said."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import torch

from bench.mutations.forked import run_ranks
from bench.mutations.mutations import MUTATIONS, NEEDS_MICRO, Where
from bench.mutations.programs import Net
from bench.mutations.ranks import RANK_MUTATIONS, RANK_PROGRAMS, REPLICATED_ONLY, SHARED, SIZE
from bench.mutations.study import FIRST, LAST, N_STEPS, Mutant
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
        if error == "frozen":
            fits.remove("ddp")  # which refuses: a parameter has no gradient
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


def train(program: str, seed: int, mutant: Mutant | None, n_steps: int = N_STEPS) -> None:
    """On one rank."""
    torch.manual_seed(seed)
    made = RANK_PROGRAMS[program]()
    if mutant is not None:
        plant = MUTATIONS.get(mutant.mutation) or RANK_MUTATIONS[mutant.mutation][0]
        plant(made, mutant.where)
    made.train(n_steps)


def load() -> None:
    """Before the first ranks are forked: each would load it by itself."""
    for name in ("torch._dynamo", "hypocenter.session"):
        importlib.import_module(name)
    torch.set_num_threads(1)


def found(program: str, seed: int, mutant: Mutant | None, audit: str, n_steps: int = N_STEPS) -> list[Finding]:
    """What is said."""
    folder = Path(mkdtemp())  # a TemporaryDirectory would go with the first child that ends
    try:
        run_ranks(SIZE, folder / "run", {"audit": audit}, lambda: train(program, seed, mutant, n_steps))
        return list(diagnose(open_run(folder / "run")).findings)
    finally:
        rmtree(folder)
