"""`hypocenter runs`: the recordings below a folder, newest first, and what was found in each so far."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.say import say
from hypocenter.diagnose.run_list import Recorded, answer
from hypocenter.record.layout import RUNS_FOLDER
from hypocenter.report import wording
from hypocenter.report.columns import aligned, cut_rows
from hypocenter.report.screen import write


@click.command("runs")
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--rows", type=click.IntRange(0), default=20, show_default=True, help="Most lines; 0 for all.")
@format_option()
def command(folder: Path | None, rows: int, format_name: str) -> None:
    """List the recordings below FOLDER (./runs if none is given): when, how the program ended, what was found.

    Exit code: 0 there are some, 4 there is none.
    """
    found = answer(folder or Path(RUNS_FOLDER))
    if format_name != "terminal":
        print_answer("runs", found, format_name)
        return
    shown = found.runs[: rows or None]
    cut = cut_rows(len(shown), len(found.runs), "run", "see them with --rows 0")
    write(sys.stdout, "".join(f"{line}\n" for line in (*aligned([_row(run) for run in shown]), *cut)))
    for note in found.notes:
        say(f"note: {note}")
    say(f"next: {wording.command('check', shown[0].path)}")


def _row(run: Recorded) -> tuple[str, ...]:
    program = "" if run.program == "finished" else f" ({run.program})"
    about = run.first or shlex.join(run.command)
    return (
        wording.clean(run.path),
        run.started[:16].replace("T", " "),
        f"{run.diagnosis}{program}",
        wording.clean(about),
    )
