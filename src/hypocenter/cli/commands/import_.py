"""`hypocenter import [KIND] PATH -o RUN`: the dump of another tool becomes a run directory of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypocenter.importing.catalogue import Done, import_dump
from hypocenter.in_words import counted
from hypocenter.report.screen import write


@click.command("import")
@click.argument("words", nargs=-1, required=True, metavar="[KIND] PATH")
@click.option("-o", "--out", metavar="RUN", help="The run directory to make; a new one below runs/ if not given.")
@click.option("--force", is_flag=True, help="Replace a recording that is there already.")
def command(words: tuple[str, ...], out: str | None, force: bool) -> int:
    """Make a run directory of another tool's dump, for check, diff, headroom, report and show.

    KIND is told by the content if it is left out; hypocenter list names all. Exit code: 0, or 4 when nothing can be
    read. What the format does not hold is said, and no rule makes anything of it.
    """
    kind, path = _taken(words)
    _say(import_dump(Path(path), out, kind=kind, force=force))
    return 0


def _taken(words: tuple[str, ...]) -> tuple[str | None, str]:
    if len(words) > 2:
        raise click.UsageError("give KIND and PATH, or PATH alone")
    kind, path = words if len(words) == 2 else (None, *words)
    return kind, path


def _say(done: Done) -> None:
    run, tally = done.run, done.tally
    what = run.imported
    assert what is not None
    lines = [
        f"{what.kind}{f' ({what.version})' if what.version else ''}: "
        f"{counted(len(tally.ranks), 'rank')}, {counted(len(tally.steps), 'step')}, "
        f"{counted(tally.readings, 'reading')}"
        + (f", {counted(tally.tensors, 'tensor')} with values" if tally.tensors else "")
    ]
    lines += [f"  note: {note}" for note in what.notes]
    lines += [f"  problem: {line}" for line in run.warnings]
    write(sys.stdout, f"{done.directory}\n")
    write(sys.stderr, "\n".join(lines) + f"\nnext: hypocenter check {done.directory}\n")
