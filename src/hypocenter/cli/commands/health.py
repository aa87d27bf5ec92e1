"""`hypocenter health RUN`: how a run is doing, by layer: what is out of range first."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.damage import tell_damage
from hypocenter.cli.on_option import on_option
from hypocenter.diagnose.health import answer
from hypocenter.diagnose.recorded_health import Recorded
from hypocenter.record.reader import open_run
from hypocenter.report import wording
from hypocenter.report.health_screen import render
from hypocenter.report.screen import screen_of, write

EXIT = {"in-range": 0, "out-of-range": 0, "cannot-tell": 5}


@click.command("health")
@click.argument("run", type=click.Path(path_type=Path))
@on_option
@format_option()
@click.option("--plugin", "plugins", multiple=True, metavar="FILE", help="A .py file with measures of your own.")
def command(run: Path, on: str, format_name: str, plugins: tuple[str, ...]) -> int:
    """Measure how RUN is doing: dead units, gates, attention, routers, growth, updates, ranks, gradient noise.

    Nothing here is an error by itself; `hypocenter explain NAME` has the page of a measure. Most need a recording made
    with --health; what is missing is told.

    Exit code: 0 measured, 4 nothing to read, 5 nothing was recorded that could be measured.
    """
    recording = open_run(run, on)
    found = answer(recording.run.name, Recorded(recording), plugins)
    if format_name == "terminal":
        write(sys.stdout, render(found, screen_of(sys.stdout)))
        first = next((value.measure for value in found.values), None)
        if first is not None:
            write(sys.stderr, f"next: {wording.command('explain', first)}\n")
    else:
        print_answer("health", found, format_name)
    tell_damage(recording)
    return EXIT[found.status]
