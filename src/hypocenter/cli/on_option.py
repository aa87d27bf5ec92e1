"""`--on` of the commands that read a recording rank by rank: what looks at the ranks."""

from __future__ import annotations

import click

on_option = click.option(
    "--on", default="", metavar="WHAT", help="Look at the ranks on processes:N, or dask://HOST:PORT."
)
