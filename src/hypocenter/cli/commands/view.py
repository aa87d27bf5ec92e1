"""`hypocenter view [RUN ...]`: follow runs in a browser while they train."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from hypocenter.cli.say import say
from hypocenter.errors import MissingFrameworkError
from hypocenter.notify.sender import NOTIFY_HELP, Sender, way_of
from hypocenter.report.screen import write


@click.command("view")
@click.argument("runs", nargs=-1, metavar="[RUN]...", type=click.Path(path_type=Path))
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Port to listen on. [8765, or one that is free]"
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; others than this machine can then ask.",
)
@click.option("--notify", "notify", multiple=True, metavar="WHERE", help=NOTIFY_HELP)
def command(runs: tuple[Path, ...], port: int | None, host: str, notify: tuple[str, ...]) -> None:
    """Serve pages that follow each RUN (a run directory, or a folder of them) until Ctrl-C. Without RUN: ./runs.

    Only this machine is listened to, and the address holds a token. Nothing is written, nothing but the runs is read.
    """
    ways = [way_of(text) for text in notify]
    try:
        from hypocenter.view.serving import Server, is_local
    except ImportError as error:
        raise MissingFrameworkError(
            "view needs starlette and uvicorn",
            where="hypocenter view",
            why=str(error),
            fix="pip install 'hypocenter[view]'; or see one run with `hypocenter report`",
        ) from error
    sender = Sender(ways, say) if ways else None
    server = Server(runs, host=host, port=port, alert=sender.send if sender is not None else None)
    write(sys.stdout, server.address + "\n")
    if not is_local(host):
        say("warning: whoever reaches this machine can read what is sent: there is no encryption")
    elif os.environ.get("SSH_CONNECTION") or os.environ.get("SLURM_JOB_ID"):
        say(f"on your own machine: ssh -N -L {server.port}:localhost:{server.port} {socket.gethostname()}")
    say("Ctrl-C ends it")
    server.run()
    if sender is not None:
        sender.close()
