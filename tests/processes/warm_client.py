"""Ask a server (server.py) for a program. As a command: be that program, for who starts it by a name on PATH.

    python -IS tests/processes/warm_client.py PLACE COMMAND...

The program has our streams, environment and folder, gets the signals that end us, and we end as it does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def ask(place: str, request: Mapping[str, Any], streams: Sequence[int]) -> socket.socket:
    """Say what is wanted, with the program's streams: the connection on which its number comes, then its exit code."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(place)
    words = json.dumps(request).encode() + b"\n"
    n_sent = socket.send_fds(server, [words], streams)
    server.sendall(words[n_sent:])
    return server


def said(server: socket.socket, timeout_s: float | None = None) -> str:
    """The next line that the server says.

    Raises:
        TimeoutError: it says nothing for so long.
    """
    server.settimeout(timeout_s)
    line = b""
    while not line.endswith(b"\n"):
        letter = server.recv(1)  # of two lines that came together the second stays
        assert letter, "the server has ended"
        line += letter
    return line.decode().strip()


def be(place: str, argv: Sequence[str]) -> None:
    """Be that command, and end as it does."""
    with ask(place, {"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}, [0, 1, 2]) as server:  # noqa: PTH109
        pid = int(said(server))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(said(server))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    be(sys.argv[1], sys.argv[2:])
