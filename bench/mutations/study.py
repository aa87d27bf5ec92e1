"""Draw mutants, train each under Hypocenter, and see what it says."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import hypocenter
from bench.mutations.mutations import MUTATIONS, NEEDS_MICRO, OF_ALL, OF_WAYS, SHIFTED, Where
from bench.mutations.programs import PROGRAMS
from bench.mutations.ranks import AFTER_UPDATE, OF_NO_PARAMETER
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

N_STEPS = 40
FIRST, LAST = 6, 18  # steps at which an error begins


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One program with one error."""

    program: str
    mutation: str
    where: Where
    seed: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was said of a mutant."""

    mutant: Mutant
    findings: tuple[Finding, ...]  # warnings, errors, and notes of laws

    @property
    def is_found(self) -> bool:
        """Whether anything was said from the step on at which the error is."""
        return bool(self.findings)

    @property
    def is_placed(self) -> bool:
        """Whether the parameter is named, where the error is of one."""
        names = (self.mutant.where.name, self.mutant.where.other)
        is_of_all = self.mutant.mutation in OF_ALL | OF_NO_PARAMETER
        return self.is_found and (is_of_all or any((f.param or f.site or "").endswith(names) for f in self.findings))

    @property
    def is_timed(self) -> bool:
        """Whether the first step is right."""
        right = self.mutant.where.step + (self.mutant.mutation in SHIFTED | AFTER_UPDATE)
        return self.is_found and min(f.step for f in self.findings) in (right, right + 1)


def draw(n: int, seed: int) -> Iterator[Mutant]:
    """Mutants in which programs, errors, steps and parameters are spread evenly."""
    rng = random.Random(seed)
    names = list(MUTATIONS)
    rng.shuffle(names)
    for number in range(n):
        mutation = names[number % len(names)]
        fits = [p for p in PROGRAMS if mutation not in NEEDS_MICRO or PROGRAMS[p]().n_micro > 1]
        if mutation == "updated twice":
            fits.remove("scaled")  # the scaler refuses
        program = rng.choice(fits)
        torch.manual_seed(0)
        made = PROGRAMS[program]().model
        shapes = {n: p.shape for n, p in made.named_parameters() if p.requires_grad}
        if mutation == "gradients exchanged":
            shapes = {n: s for n, s in shapes.items() if sum(s == other for other in shapes.values()) > 1}
        name = rng.choice(
            [n for n in shapes if mutation not in OF_WAYS or "embed" in n or n.startswith("a.")] or list(shapes)
        )
        same = [n for n, s in shapes.items() if s == shapes[name] and n != name]
        other = rng.choice(same) if same and mutation == "gradients exchanged" else name
        n_micro = PROGRAMS[program]().n_micro
        step, is_once = rng.randint(FIRST, LAST), rng.random() < 0.5
        where = Where(step=step, name=name, other=other, microbatch=rng.randrange(n_micro), is_once=is_once)
        yield Mutant(program=program, mutation=mutation, where=where, seed=rng.randrange(1 << 30))


def train(
    program: str, seed: int, out: Path, mutant: Mutant | None, audit: str, n_steps: int = N_STEPS
) -> list[Finding]:
    """Train a program, healthy where there is no mutant; what is said."""
    torch.manual_seed(seed)
    made = PROGRAMS[program]()
    if mutant is not None:
        MUTATIONS[mutant.mutation](made, mutant.where)
    watched(lambda: made.train(n_steps), out, audit)
    return list(diagnose(open_run(out)).findings)


def watched(run: Callable[[], None], out: Path, audit: str) -> None:
    """Run in this process under Hypocenter, without a word on the screen."""
    with (
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
        hypocenter.watch(out=str(out), audit=audit, force=True),
    ):
        run()


def found(program: str, seed: int, mutant: Mutant | None, audit: str, n_steps: int = N_STEPS) -> list[Finding]:
    """What is said of it."""
    with TemporaryDirectory() as folder:
        return train(program, seed, Path(folder) / "run", mutant, audit, n_steps)


def said(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """What counts: warnings, errors, and notes of laws."""
    laws = ("HC231", "HC232", "HC233", "HC235", "HC308", "HC309")
    return tuple(f for f in findings if f.severity in ("warning", "error") or f.code in laws)
