"""`hypocenter export RUN --to KIND -o PATH`: a recording becomes files of another tool."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypocenter.cli.waiting import shown_while_waiting
from hypocenter.exporting.catalogue import EXPORTERS, export
from hypocenter.record.reader import open_run
from hypocenter.record.whole_run import newest_run
from hypocenter.report.screen import write


def _completed(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    return [name for name in EXPORTERS.entries() if name.startswith(typed)]


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option(
    "--to", "kind", required=True, metavar="KIND", shell_complete=_completed,
    help="parquet, csv, perfetto, chrome-trace or tensorboard.",
)  # fmt: skip
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="PATH", help="What to make.")
@click.option("--force", is_flag=True, help="Replace what is there already.")
def command(run: Path | None, kind: str, out: Path, force: bool) -> int:
    """Make files of RUN that other tools open. Without RUN: of the newest one below ./runs.

    perfetto and chrome-trace make one file, the others a folder. What a recording does not hold, as when a module ran,
    is said and marked as such in the file. Exit code: 0, or 4 when there is nothing to read.
    """
    directory = run or newest_run()
    with shown_while_waiting(f"exporting {directory}", sys.stderr):
        made = export(open_run(directory), kind, out, force=force)
    write(sys.stdout, f"{out}\n")
    write(sys.stderr, "".join(f"note: {note}\n" for note in made.notes) + f"next: {_next(kind, out)}\n")
    return 0


def _next(kind: str, out: Path) -> str:
    opened = {
        "parquet": f"duckdb -c \"select * from '{out}/steps.parquet'\"",
        "csv": f"head {out}/steps.csv",
        "perfetto": f"open https://ui.perfetto.dev and give it {out}; the file stays on this machine",
        "chrome-trace": f"open chrome://tracing or https://ui.perfetto.dev and give it {out}",
        "tensorboard": f"tensorboard --logdir {out}",
    }
    return opened.get(kind, f"open {out}")
