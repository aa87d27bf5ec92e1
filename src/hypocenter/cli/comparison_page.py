"""`hypocenter diff --report OUT.html`: gather what the page shows beside the answer, and write it."""

from __future__ import annotations

import sys
from pathlib import Path

from hypocenter.cli.output_file import write_file
from hypocenter.compare.comparison import Comparison
from hypocenter.compare.curves.of_runs import curves_of_runs
from hypocenter.compare.walk import Options, scene_of
from hypocenter.record.reader import RecordedRun
from hypocenter.report import wording
from hypocenter.report.comparison import html
from hypocenter.report.comparison.page.payload import Material
from hypocenter.report.screen import write


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
    write_file(target, text, "report", flag="--report")
    write(sys.stderr, f"wrote {target} ({wording.byte_size(len(text.encode()))}); open it in a browser\n")
