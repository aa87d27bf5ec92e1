"""`hypocenter determinism`: run a program twice and name the first operator that does not repeat itself.

It is `hypocenter twin nothing` with more options, and an answer of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, show_answer
from hypocenter.cli.commands.twin import runs_of
from hypocenter.cli.program import ProgramCommand
from hypocenter.compare.repeats.answer import Cure, Determinism
from hypocenter.compare.repeats.engine import compare_repeats
from hypocenter.errors import ConfigError
from hypocenter.report import wording
from hypocenter.report.determinism_screen import render
from hypocenter.twins.bits import recording_bits, with_failures
from hypocenter.twins.runs import Runs

EXIT = {"deterministic": 0, "differs": 1, "cannot-tell": 5}


@click.command(
    cls=ProgramCommand,
    name="determinism",
    no_args_is_help=True,
    options_metavar="[OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--steps", type=click.IntRange(min=1), default=3, help="Steps of each run. [default: 3]", metavar="N")
@click.option("--repeat", "n_runs", type=click.IntRange(min=2), default=2, help="Runs. [default: 2]", metavar="K")
@click.option("--cure", is_flag=True, help="Try too whether run --deterministic makes it repeat itself.")
@click.option("--seed", type=int, help="Seed of --cure.", metavar="N")
@click.option(
    "--recorded",
    "recorded",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="RUN",
    help="Compare these recordings, made with run --op-bits, and run nothing. May be repeated.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the runs; a new one under runs/."
)
@click.option("--force", is_flag=True, help="Replace existing recordings in it.")
@format_option()
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
def command(
    program: tuple[str, ...],
    steps: int,
    n_runs: int,
    cure: bool,
    seed: int | None,
    recorded: tuple[Path, ...],
    out: Path | None,
    force: bool,
    format_name: str,
) -> int:
    """Run PROGRAM twice, in the same way, and compare the bits of what every operator reads and writes.

    Names the first operator that differs with its line, and every line that drew random numbers from a generator
    without a fixed seed. PROGRAM is as in `run`. Exit code: 0 deterministic, 1 differs, 5 cannot tell.
    """
    if recorded:
        return _answer(compare_repeats(_enough(recorded, program)), format_name, "")
    if not program:
        raise ConfigError("there is nothing to run", where="PROGRAM", fix="hypocenter determinism train.py")
    runs = runs_of(program, out, "determinism", n_runs, steps, force=force)
    made = [runs.make(f"run-{n}", recording_bits(steps)) for n in range(1, n_runs + 1)]
    found = with_failures(compare_repeats([one.directory for one in made]), made)
    if cure and found.status == "differs":
        found = replace(found, cure=_cure(runs, steps, n_runs, seed))
    hint = ""
    if found.status == "differs" and not cure:
        hint = f"hypocenter determinism --cure --steps {steps} {shlex.join(program)}"
    elif found.cure is not None and found.cure.verified:
        hint = f"hypocenter run --deterministic {shlex.join(program)}"
    return _answer(found, format_name, hint)


def _answer(found: Determinism, format_name: str, hint: str) -> int:
    show_answer("determinism", found, format_name, partial(render, next_command=hint))
    return EXIT[found.status]


def _cure(runs: Runs, steps: int, n_runs: int, seed: int | None) -> Cure:
    """Run the program with imposed determinism and say whether it then repeats itself."""
    config = recording_bits(steps, deterministic=True, seed=seed)
    made = [runs.make(f"deterministic-{n}", config) for n in range(1, n_runs + 1)]
    found = compare_repeats([one.directory for one in made])
    if found.status == "deterministic":
        text = f"run --deterministic (verified: {n_runs} runs under it agree in {wording.count(found.n_steps, 'step')})"
        return Cure(verified=True, text=text)
    return Cure(verified=False, text=f"not by run --deterministic: {found.sentence}", left=found.first)


def _enough(recorded: tuple[Path, ...], program: Sequence[str]) -> tuple[Path, ...]:
    if len(recorded) < 2 or program:
        raise ConfigError(
            "recordings are compared with each other",
            where="--recorded",
            why="a program was given too" if program else "there is only one",
            fix="hypocenter determinism --recorded RUN --recorded RUN",
        )
    return recorded
