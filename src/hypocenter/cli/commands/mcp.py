"""`hypocenter mcp`: the reading commands as tools for agents, in the Model Context Protocol over stdin and stdout."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hypocenter.cli.agents.roots import roots_of
from hypocenter.cli.say import say
from hypocenter.errors import HypocenterError, first_line


class NeedsMcpError(HypocenterError):
    """The package that speaks the protocol is not installed."""

    slug = "missing-extra"


@click.command("mcp")
@click.argument("roots", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER]...")
def command(roots: tuple[Path, ...]) -> None:
    """Serve check, show, explain, diff, curves, replay, cure and others to an agent, as tools with JSON answers.

    Only what lies below FOLDER (the current one if none is given) can be read. Ends when stdin is closed. What agents
    are told is `hypocenter skill`.
    """
    folders = roots_of(roots or (Path(),))
    try:
        from hypocenter.cli.agents.server import serve
    except ImportError as error:
        raise NeedsMcpError(
            "agents are served with the package mcp, version 2 or later, and it cannot be imported",
            where=sys.executable,
            why=first_line(error),
            fix="pip install 'hypocenter[mcp]'",
        ) from error
    if sys.stdin.isatty():
        say(f"serving an agent on stdin and stdout; below {', '.join(map(str, folders))} can be read; Ctrl-D ends it")
    serve(folders)
