"""`hypocenter twin`: run a program with and without a change that must not matter, and name where the two part."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hypocenter.cli.answer_format import format_option, show_answer
from hypocenter.cli.commands.run import environment
from hypocenter.cli.program import ProgramCommand, argv_of
from hypocenter.cli.say import say
from hypocenter.errors import ConfigError
from hypocenter.record.layout import new_run_directory
from hypocenter.report import twin_screen, wording
from hypocenter.report.screen import write
from hypocenter.twins.change import Asked, by_name, changes
from hypocenter.twins.runs import Made, Runs, split

EXIT = {"same": 0, "differs": 1, "cannot-tell": 5}


class TwinCommand(ProgramCommand):
    """A `ProgramCommand` whose first word that is no option is the change; the program comes after it."""

    def _program_starts(self, args: list[str]) -> int:
        at = super()._program_starts(args)
        if at >= len(args):
            return at
        after = args[at + 1 :]
        begins = super()._program_starts(after)
        args[at + 1 :] = after
        return at + 1 + begins


def _list(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        write(sys.stdout, twin_screen.listed(changes().values()))
        context.exit()


@click.command(
    cls=TwinCommand,
    name="twin",
    no_args_is_help=True,
    options_metavar="[OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List all changes.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=3, help="Steps that are compared. [default: 3]", metavar="N"
)
@click.option(
    "--stop-at",
    type=click.IntRange(min=1),
    metavar="K",
    help="Of resume: the step, counted from 0, in the middle of which the program is ended.",
)
@click.option("--resume-args", default="", metavar="WORDS", help="Of resume: words that make the program resume.")
@click.option(
    "--checkpoint",
    default="",
    metavar="PATH",
    help="Of resume: a checkpoint for the Trainer of Transformers or Lightning.",
)
@click.option("--baseline-args", default="", metavar="WORDS", help="Words that only the run without the change gets.")
@click.option("--candidate-args", default="", metavar="WORDS", help="Words that only the run with the change gets.")
@click.option("--deterministic", is_flag=True, help="Impose seeds and deterministic algorithms on all runs.")
@click.option("--seed", type=int, help="Seed of all generators, in all runs.", metavar="N")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the runs; a new one under runs/."
)
@click.option("--force", is_flag=True, help="Replace existing recordings in it.")
@format_option()
@click.argument("wanted", metavar="CHANGE")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
def command(
    wanted: str,
    program: tuple[str, ...],
    steps: int,
    stop_at: int | None,
    resume_args: str,
    checkpoint: str,
    baseline_args: str,
    candidate_args: str,
    out: Path | None,
    force: bool,
    format_name: str,
    **imposed: Any,
) -> int:
    """Run PROGRAM with and without a CHANGE that must not matter, and name the first place where the two part.

    CHANGE is one of those that --list shows, such as resume or workers=0. `{folder}` in the words of the program stands
    for a folder of each run's own. Exit code: 0 the same, 1 differs, 5 cannot tell.
    """
    name, _, value = wanted.partition("=")
    change = by_name(name)
    if value and not change.values:
        raise ConfigError(f"{name} takes no value", where=wanted, fix=f"hypocenter twin {name} -- PROGRAM")
    if not program:
        raise ConfigError("there is nothing to run", where="PROGRAM", fix=f"hypocenter twin {wanted} -- train.py")
    runs = runs_of(program, out, name, 0, steps, force=force)
    asked = Asked(
        runs=runs,
        value=value,
        steps=steps,
        stop_at=stop_at,
        checkpoint=checkpoint,
        first_words=_words("--baseline-args", baseline_args),
        second_words=_words("--resume-args", resume_args) + _words("--candidate-args", candidate_args),
        **imposed,
    )
    found = replace(change.make(asked), change=name, value=value)
    if not found.means:
        found = replace(found, means=_section(change.manual.sections, "What it means"))
    show_answer("twin", found, format_name, twin_screen.render)
    return EXIT[found.status]


def runs_of(program: Sequence[str], out: Path | None, name: str, n_runs: int, steps: int, *, force: bool) -> Runs:
    """Return what starts the program; make its folder and say what is to come.

    Raises:
        UnknownNameError: there is no such program.
    """
    argv = tuple(argv_of(program))  # a program that is not there is an error before anything is made
    base = out if out is not None else new_run_directory(None, force, f"{_stem(program)}-{name}")
    number = f"{wording.count(n_runs, 'run')} of {wording.count(steps, 'step')}" if n_runs else "runs"
    say(f"{number} to {base}")
    done: list[str] = []

    def said(made: Made) -> None:
        done.append(made.name)
        what, _, n = made.name.rpartition("-")
        text = f"{what} {n} of {n_runs}" if n_runs else made.name
        say(
            f"{text.replace('deterministic ', 'deterministic run ')}: {made.seconds:.1f} s"
            + (f", exit code {made.code}" if made.code else "")
        )

    return Runs(program=tuple(program), argv=argv, base=base, environment=environment, force=force, said=said)


def _words(flag: str, text: str) -> tuple[str, ...]:
    try:
        return split(text)
    except ValueError as error:
        raise ConfigError(f"{flag} cannot be split into words", where=f"{flag} {text!r}", why=str(error)) from error


def _section(sections: Sequence[tuple[str, str]], heading: str) -> str:
    return next((" ".join(text.split()) for name, text in sections if name == heading), "")


def _stem(program: Sequence[str]) -> str:
    scripts = [word for word in program if word.endswith(".py")]
    return Path([*scripts, *program][0]).stem
