"""`hypocenter relations RUN`: what must not matter, which of it was changed in the run, and what came of it."""

from __future__ import annotations

from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, show_answer
from hypocenter.cli.damage import tell_damage
from hypocenter.detect.relation_rows import LOOKED, RELATION
from hypocenter.diagnose.relation_list import answer
from hypocenter.record.reader import open_run
from hypocenter.report.relations_screen import render

EXIT = {"healthy": 0, "broken": 1, "not-asked": 0}


@click.command("relations")
@click.argument("run", type=click.Path(path_type=Path))
@format_option()
def command(run: Path, format_name: str) -> int:
    """List what must not matter to the model of RUN (other samples, later tokens, padding, labels): does it hold?

    Exit code: 0 what was asked holds, 1 something does not, 4 nothing to read.
    """
    recording = open_run(run)
    ranks = sorted(recording.places)
    rows = [
        (rank, row) for rank in ranks for row in recording.readings(phase="optimizer", rank=rank)
        if row.port in (LOOKED, RELATION)
    ]  # fmt: skip
    found = answer(recording.run.name, sorted(rows, key=lambda each: (each[1].step, each[1].order)))
    show_answer("relations", found, format_name, render)
    tell_damage(recording)
    return EXIT[found.status]
