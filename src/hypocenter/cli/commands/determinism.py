"""`hypocenter determinism`: run a program twice and name the first operator that does not repeat itself."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from hypocenter.align.children import start
from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.commands.run import environment
from hypocenter.cli.program import ProgramCommand, argv_of
from hypocenter.cli.say import say
from hypocenter.compare.repeats.answer import Cure, Determinism
from hypocenter.compare.repeats.engine import compare_repeats
from hypocenter.config import Config
from hypocenter.errors import ConfigError
from hypocenter.record.layout import new_run_directory
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.report import wording
from hypocenter.report.determinism_screen import render
from hypocenter.report.screen import screen_of, write

EXIT = {"deterministic": 0, "differs": 1, "cannot-tell": 5}
OUTPUT_FILE = "output.txt"
TAIL = 5  # lines of a program's output that tell why it failed


@click.command(
    cls=ProgramCommand, name="determinism", no_args_is_help=True, options_metavar="[OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=3, help="Steps of each run. [default: 3]", metavar="N")
@click.option("--repeat", "n_runs", type=click.IntRange(min=2), default=2, help="Runs. [default: 2]", metavar="K")
@click.option("--cure", is_flag=True, help="Try too whether run --deterministic makes it repeat itself.")
@click.option("--seed", type=int, help="Seed of --cure.", metavar="N")
@click.option(
    "--recorded", "recorded", multiple=True, type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="RUN", help="Compare these recordings, made with run --op-bits, and run nothing. May be repeated.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the runs; a new one under runs/."
)
@click.option("--force", is_flag=True, help="Replace existing recordings in it.")
@format_option()
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
def command(
    program: tuple[str, ...], steps: int, n_runs: int, cure: bool, seed: int | None, recorded: tuple[Path, ...],
    out: Path | None, force: bool, format_name: str,
) -> int:  # fmt: skip
    """Run PROGRAM twice, in the same way, and compare the bits of what every operator reads and writes.

    Names the first operator that differs with its line, and every line that drew random numbers from a generator
    without a fixed seed. PROGRAM is as in `run`. Exit code: 0 deterministic, 1 differs, 5 cannot tell.
    """
    if recorded:
        found = compare_repeats(_enough(recorded, program))
        return _answer(found, format_name, "")
    if not program:
        raise ConfigError("there is nothing to run", where="PROGRAM", fix="hypocenter determinism train.py")
    argv_of(program)  # a program that is not there is an error before anything is made
    base = out if out is not None else new_run_directory(None, force, f"{_stem(program)}-determinism")
    say(f"{wording.count(n_runs, 'run')} of {wording.count(steps, 'step')} to {base}")
    runs = repeat(
        program, [base / f"run-{n}" for n in range(1, n_runs + 1)], configuration(steps), force=force,
        said=lambda done: _say_of(done, "run", n_runs),
    )  # fmt: skip
    found = _with_failures(compare_repeats([run.directory for run in runs]), runs)
    if cure and found.status == "differs":
        found = replace(found, cure=_cure(program, base, steps, n_runs, seed, force))
    hint = ""
    if found.status == "differs" and not cure:
        hint = f"hypocenter determinism --cure --steps {steps} {shlex.join(program)}"
    elif found.cure is not None and found.cure.verified:
        hint = f"hypocenter run --deterministic {shlex.join(program)}"
    return _answer(found, format_name, hint)


def _answer(found: Determinism, format_name: str, hint: str) -> int:
    if format_name == "terminal":
        write(sys.stdout, render(found, screen_of(sys.stdout), next_command=hint))
    else:
        print_answer("determinism", found, format_name)
    return EXIT[found.status]


def _cure(program: Sequence[str], base: Path, steps: int, n_runs: int, seed: int | None, force: bool) -> Cure:
    """Whether it repeats itself when determinism is imposed."""
    runs = repeat(
        program, [base / f"deterministic-{n}" for n in range(1, n_runs + 1)],
        configuration(steps, deterministic=True, seed=seed), force=force,
        said=lambda done: _say_of(done, "deterministic run", n_runs),
    )  # fmt: skip
    found = compare_repeats([run.directory for run in runs])
    if found.status == "deterministic":
        text = f"run --deterministic (verified: {n_runs} runs under it agree in {wording.count(found.n_steps, 'step')})"
        return Cure(verified=True, text=text)
    return Cure(verified=False, text=f"not by run --deterministic: {found.sentence}", left=found.first)


def _with_failures(found: Determinism, runs: Sequence[Repeat]) -> Determinism:
    """What a program said that failed."""
    failed = [run for run in runs if run.code]
    if not failed:
        return found
    run = failed[0]
    note = f"{run.directory.name} ended with exit code {run.code}: {run.tail.splitlines()[-1] if run.tail else ''}"
    if found.status == "cannot-tell":
        return replace(found, why=(*found.why, note), notes=(*found.notes, note))
    return replace(found, notes=(*found.notes, note))


def _enough(recorded: tuple[Path, ...], program: tuple[str, ...]) -> tuple[Path, ...]:
    if len(recorded) < 2 or program:
        raise ConfigError(
            "recordings are compared with each other", where="--recorded",
            why="a program was given too" if program else "there is only one",
            fix="hypocenter determinism --recorded RUN --recorded RUN",
        )  # fmt: skip
    return recorded


def _say_of(run: Repeat, what: str, n_runs: int) -> None:
    number = run.directory.name.rpartition("-")[2]
    say(f"{what} {number} of {n_runs}: {run.seconds:.1f} s" + (f", exit code {run.code}" if run.code else ""))


def _stem(program: Sequence[str]) -> str:
    scripts = [word for word in program if word.endswith(".py")]
    return Path([*scripts, *program][0]).stem


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One run of the program."""

    directory: Path
    code: int
    seconds: float

    @property
    def tail(self) -> str:
        """The last lines that it wrote; empty when it ended well."""
        if self.code == 0:
            return ""
        try:
            lines = (self.directory / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-TAIL:])


def configuration(steps: int, *, deterministic: bool = False, seed: int | None = None) -> Config:
    """Digests of all operators, and nothing else that could be recorded."""
    return Config(
        op_bits=True, stop_after_step=steps - 1, deterministic=deterministic, seed=seed, replay=False, cure="off",
        replicas="never", collectives="never", agree=False,
    )  # fmt: skip


def repeat(
    program: Sequence[str], directories: Sequence[Path], config: Config, *, force: bool, said: Callable[[Repeat], None]
) -> list[Repeat]:
    """Run it once for each directory; its output goes to output.txt in there.

    Args:
        said: told of each run when it is over.

    Raises:
        UnknownNameError: there is no such program.
        ExistsError: a directory holds a recording, and `force` is off.
    """
    argv, done = argv_of(program), list[Repeat]()
    for path in directories:
        directory = new_run_directory(str(path), force).absolute()
        settings = replace(config, out=str(directory))
        start_run(directory, program, asdict(settings), 1, {})
        begun = time.monotonic()
        code = start(
            argv, env=environment(_outside(os.environ), directory, settings), cwd=Path.cwd(),
            output=directory / OUTPUT_FILE, timeout_s=None,
        )  # fmt: skip
        finish_run(directory, "finished" if code == 0 else "failed", code)
        (directory / ".reached").unlink(missing_ok=True)
        done.append(Repeat(directory=directory, code=code, seconds=time.monotonic() - begun))
        said(done[-1])
    return done


def _outside(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("HYPOCENTER_")}
