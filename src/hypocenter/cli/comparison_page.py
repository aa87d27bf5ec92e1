"""`hypocenter diff --report OUT.html`: gather what the page shows beside the answer, and write it."""

from __future__ import annotations

import sys
from pathlib import Path

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.curves.of_runs import curves_of_runs
from hypocenter.compare.options import Options
from hypocenter.compare.scene import scene_of
from hypocenter.errors import ConfigError, ExistsError
from hypocenter.record.reader import RecordedRun
from hypocenter.report import wording
from hypocenter.report.comparison import html
from hypocenter.report.comparison.page.material import Material
from hypocenter.report.screen import write


def refuse_existing(target: Path | None, *, force: bool) -> None:
    """Raise ExistsError if the page would take the place of a file."""
    if target is not None and target.exists() and not force:
        raise ExistsError(
            "the report exists already", where=str(target), why="reports are never overwritten silently",
            fix="choose another with --report, or add --force to replace it",
        )  # fmt: skip


def write_page(
    target: Path, found: Comparison, runs: tuple[RecordedRun, RecordedRun], options: Options, words: list[str]
) -> None:
    """Write the page of a comparison, and say how large it is.

    Args:
        runs: baseline and candidate.
        options: those that `found` was made with.
        words: of the command line that makes the page again, without the program's name.

    Raises:
        ConfigError: the file cannot be written.
    """
    noise = [run.directory for run in options.noise]
    material = Material(
        scene=scene_of(found, *runs, options), facts=(runs[0].facts(), runs[1].facts()),
        curves=curves_of_runs(runs[0].directory, runs[1].directory, noise), command=wording.command(*words),
    )  # fmt: skip
    text = html.render(found, material)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            "the report cannot be written", where=str(target), why=str(error), fix="choose another with --report"
        ) from error
    write(sys.stderr, f"wrote {target} ({wording.byte_size(len(text.encode()))}); open it in a browser\n")
