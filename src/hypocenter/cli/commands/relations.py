"""`hypocenter relations RUN`: what must not matter, which of it was changed in the run, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.text import Text

from hypocenter.cli.answer_format import format_option, show_answer
from hypocenter.cli.damage import tell_damage
from hypocenter.detect.relation_rows import LOOKED, RELATION
from hypocenter.diagnose.relation_list import Answer, Asked, answer
from hypocenter.in_words import counted
from hypocenter.record.reader import open_run
from hypocenter.report import wording
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

EXIT = {"healthy": 0, "broken": 1, "not-asked": 0}
_STYLES = {"broken": "bold yellow", "exception": "yellow", "holds": "green", "not-asked": "dim"}


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
    show_answer("relations", found, format_name, _on_screen)
    tell_damage(recording)
    return EXIT[found.status]


def _on_screen(found: Answer, screen: Screen) -> str:
    return to_text(_lines(found, screen.width), screen)


def _lines(found: Answer, width: int) -> Iterator[Text]:
    n_broken = sum(asked.state == "broken" for asked in found.relations)
    n_held = sum(asked.state == "holds" for asked in found.relations)
    if found.status == "broken":
        yield Text.assemble(
            ("broken: ", "bold yellow"), (f"{counted(n_broken, 'relation')} of {n_broken + n_held}", "bold")
        )
    elif found.status == "healthy":
        yield Text.assemble(("healthy: ", "bold green"), (f"{counted(n_held, 'relation')} asked, all hold", "bold"))
    else:
        yield Text("no relation was asked", "bold")
    yield Text()
    indent = max([len(asked.relation) for asked in found.relations], default=0) + 13
    for asked in found.relations:
        label = Text.assemble(
            f"{wording.clean(asked.relation):{indent - 11}}", (f"{asked.state:11}", _STYLES[asked.state])
        )
        yield from wrapped(label, Text(wording.clean(_words(asked))), width, indent=indent)
    for note in found.notes:
        yield from wrapped(Text("note: "), Text(wording.clean(note)), width, indent=6)


def _words(asked: Asked) -> str:
    if asked.code is None:
        return asked.why or f"step {asked.step}"
    line = "" if asked.source is None else f", before {asked.source.file}:{asked.source.line}"
    return f"{asked.code} in step {asked.step}: {asked.why}, first in {asked.site or 'the model itself'}{line}"
