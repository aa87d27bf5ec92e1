"""`hypocenter replay BUNDLE`: show a failure again, in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from hypocenter.errors import BundleError
from hypocenter.record.layout import EVIDENCE_FILE


@click.command("replay", context_settings={"ignore_unknown_options": True})
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def command(bundle: Path, options: tuple[str, ...]) -> int:
    """Execute the operator that failed again, from the inputs kept in BUNDLE.

    Needs torch, in a process of its own. OPTIONS are passed on; the exit code is that process's.
    """
    if not bundle.is_dir():
        raise BundleError(
            "there is no bundle",
            where=str(bundle),
            why="it is not a directory",
            fix=f"give a folder that holds {EVIDENCE_FILE}, such as RUN/rank-00000/bundles/NAME",
        )
    words = [sys.executable, "-m", "hypocenter.replay", str(bundle), *options]
    return subprocess.run(words, check=False).returncode
