"""`hypocenter ship RUN ADDRESS`: bring a recording, or what is missing of it, to an object store or another folder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypocenter.errors import HypocenterError
from hypocenter.record.address import without_secrets
from hypocenter.record.layout import rank_directories
from hypocenter.record.reader import open_run
from hypocenter.record.shipping import ship_run
from hypocenter.report import wording
from hypocenter.report.screen import write


@click.command("ship")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("address")
def command(run: Path, address: str) -> None:
    """Bring RUN to ADDRESS (s3://bucket/run, gs://, hdfs://, a folder): what is there already is not sent again.

    While a program runs, `hypocenter run --ship ADDRESS` does it by itself.
    """
    recording = open_run(run)
    try:
        n_files = ship_run(recording.directory, address, list(rank_directories(recording.directory).values()))
    except HypocenterError:
        raise
    except Exception as error:
        raise HypocenterError(
            "the recording could not be shipped", where=address,
            why=without_secrets(f"{type(error).__name__}: {error}")[:300],
            fix="the same command again goes on where this one stopped",
        ) from error  # fmt: skip
    write(sys.stdout, f"{wording.count(n_files, 'file')} of {run} are at {address}\n")
    write(sys.stderr, f"next: {wording.command('check', address)}\n")
