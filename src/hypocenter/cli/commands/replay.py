"""`hypocenter replay BUNDLE`: show a failure again, in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.replayed import EXIT, replayed
from hypocenter.errors import BundleError
from hypocenter.record.layout import EVIDENCE_FILE


@click.command("replay")
@click.argument("bundle", type=click.Path(path_type=Path))
@format_option()
def command(bundle: Path, format_name: str) -> int:
    """Execute the operator that failed again, from the inputs kept in BUNDLE.

    Needs torch, in a process of its own. Exit code: 0 the failure shows again, 1 it does not, 2 there is no torch, 4
    the bundle cannot be used.
    """
    if not bundle.is_dir():
        raise BundleError(
            "there is no bundle",
            where=str(bundle),
            why="it is not a directory",
            fix=f"give a folder that holds {EVIDENCE_FILE}, such as RUN/rank-00000/bundles/NAME",
        )
    if format_name != "terminal":
        found = replayed(bundle)
        print_answer("replay", found, format_name)
        return EXIT[found.status]
    words = [sys.executable, "-m", "hypocenter.replay", str(bundle)]
    return subprocess.run(words, check=False).returncode
