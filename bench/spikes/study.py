"""Draw jumps, train each program under Hypocenter, and see what it says."""

from __future__ import annotations

import contextlib
import io
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch

import hypocenter
from bench.spikes.harmless import HARMLESS
from bench.spikes.healthy import HEALTHY
from bench.spikes.kinds import KINDS, Right, Where
from bench.spikes.programs import PROGRAMS, ROWS, How, Program, places_of
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.judged_evidence import load
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

FIRST, LAST, AFTER = 16, 40, 4  # steps at which a jump is planted, and how many more are trained
LEAST = 8.0  # times that the loss or the norm has to jump by; else it is planted more strongly
_WEAKEST, _STRONGEST = 1 / 64, 64.0


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One program with one jump."""

    program: str
    kind: str
    where: Where
    how: How
    seed: int

    def made(self, *, healthy: bool = False) -> Program:
        torch.manual_seed(self.seed)
        program = PROGRAMS[self.program]()
        program.how = self.how
        if not self.kind:
            return program
        plant = HARMLESS[self.kind] if self.kind in HARMLESS else KINDS[self.kind].plant
        plant(program, replace(self.where, step=10**9) if healthy else self.where)
        return program


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was said of a mutant."""

    mutant: Mutant
    factor: float  # by which it jumped
    findings: tuple[Finding, ...]

    @property
    def right(self) -> Right:
        return KINDS[self.mutant.kind].right(self.mutant.made(), self.mutant.where)

    @property
    def at_step(self) -> Finding | None:
        """What is said of its step, a warning first."""
        right = self.mutant.where.step + self.right.later
        found = sorted(
            (f for f in self.findings if f.step == right and f.code == "HC401"), key=lambda f: f.severity == "note"
        )
        return found[0] if found else None

    @property
    def is_timed(self) -> bool:
        return self.at_step is not None

    @property
    def is_placed(self) -> bool | None:
        """Whether operation and line, or the tensor, or what happened is told; None: only samples are to be."""
        right, said = self.right, self.at_step
        if not (right.line or right.leaf or right.says):
            return None
        if said is None:
            return False
        if right.line:
            is_line = said.source is not None and said.source.text.strip().endswith(f"# JUMP: {right.line}")
            return is_line and (said.site in ("loss", "", None) or said.site.endswith(self.mutant.where.place))
        if right.leaf:
            named = (said.param or "", said.port or "", said.title)
            return said.cause in ("state-changed", "data-shifted", "bad-sample") and any(
                leaf in text for leaf in right.leaf for text in (*named, *said.why)
            )
        return any(right.says in line for line in (said.title, *said.why))

    @property
    def is_sample_right(self) -> bool | None:
        if not self.right.is_of_row:
            return None
        return self.at_step is not None and self.at_step.samples == (self.mutant.where.row,)


def draw(kind: str, seed: int) -> Iterator[Mutant]:
    """Mutants of a kind without end, in which steps, places and samples are spread evenly, over all programs."""
    rng = random.Random(f"{kind} {seed}")
    while True:
        programs = list(KINDS[kind].programs or PROGRAMS)
        rng.shuffle(programs)
        for program in programs:
            yield _drawn(rng, program, kind)


def draw_harmless(n: int, seed: int) -> Iterator[Mutant]:
    rng = random.Random(seed)
    for number in range(n):
        yield _drawn(rng, rng.choice(list(PROGRAMS)), list(HARMLESS)[number % len(HARMLESS)])


def _drawn(rng: random.Random, program: str, kind: str) -> Mutant:
    how = How(clip=rng.random() < 0.5, amp=rng.choice(("", "", "bf16", "fp16")), n_micro=rng.choice((1, 1, 2)))
    where = Where(
        step=rng.randint(FIRST, LAST),
        place=rng.choice(list(places_of(PROGRAMS[program]()))),
        row=rng.randrange(ROWS),
        microbatch=rng.randrange(how.n_micro),
        strength=1.0,
    )
    return Mutant(program=program, kind=kind, where=where, how=how, seed=rng.randrange(1 << 30))


def said_of(mutant: Mutant) -> tuple[Finding, ...]:
    """Train it under Hypocenter, until some steps after its jump."""
    return watched(lambda: mutant.made(), lambda program: program.train(mutant.where.step + AFTER, mutant.seed))


def said_of_healthy(name: str, n_steps: int, seed: int) -> tuple[Finding, ...]:
    """The same of one of the programs in which nothing is wrong."""
    torch.manual_seed(seed)
    return watched(lambda: None, lambda _: HEALTHY[name](n_steps, torch.Generator().manual_seed(seed)))


T = TypeVar("T")


def watched(make: Callable[[], T], train: Callable[[T], object]) -> tuple[Finding, ...]:
    """What is said of a program; also of what is told only as "again at step N"."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            made = make()
            with hypocenter.watch(out=str(out), force=True):
                train(made)
            recording = open_run(out)
            told = [f for f in diagnose(recording).findings if f.code != "HC214"]
            pieces = load(recording.evidence_files(), recording.directory).found
            again = [p.finding for p in pieces if p.finding.step not in {f.step for f in told}]
            return (*told, *again)


def outcome(mutant: Mutant) -> Outcome | None:
    """Plant it so strongly that it jumps and stays finite, and train it; None: it cannot be made to.

    What leaves float16 as soon as it jumps is planted in float32.
    """
    done = _strong(mutant)
    return done if done is not None or not mutant.how.amp else _strong(replace(mutant, how=replace(mutant.how, amp="")))


def _strong(mutant: Mutant) -> Outcome | None:
    healthy, strength, tried = mutant.made(healthy=True).train(mutant.where.step + 2, mutant.seed), 1.0, set[float]()
    while _WEAKEST <= strength <= _STRONGEST and strength not in tried:
        tried.add(strength)
        strong = replace(mutant, where=replace(mutant.where, strength=strength))
        factor = jump(strong, healthy)
        if LEAST <= factor < math.inf:
            return Outcome(mutant=strong, factor=factor, findings=said_of(strong))
        strength *= 8 if factor < LEAST else 1 / 8
    return None


def jump(mutant: Mutant, healthy: list[tuple[float, float]]) -> float:
    """By which factor the loss or the gradient's norm at its step is larger than any of 16 healthy ones; or inf."""
    at = mutant.where.step + KINDS[mutant.kind].right(mutant.made(), mutant.where).later
    course = mutant.made().train(at + 1, mutant.seed)
    usual = [max(abs(values[i]) for values in healthy[at - 16 : at + 1]) for i in range(2)]
    if not all(math.isfinite(value) for values in course for value in values):
        return math.inf
    return max(abs(now) / (before or 1.0) for now, before in zip(course[at], usual, strict=True))
