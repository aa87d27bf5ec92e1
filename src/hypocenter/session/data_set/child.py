"""A question that is answered by a forked child, so that whatever the answer takes changes nothing here."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

from hypocenter.session.data_set.sealed import seal
from hypocenter.unwarned import unwarned

_MOST_BYTES = 1 << 16


def ask(question: Callable[[], bytes], seconds: float) -> bytes | None:
    """Return the answer of a forked child; None if there is none after so many seconds, and the child is ended."""
    read_end, write_end = os.pipe()
    with (
        unwarned()
    ):  # of a fork beside threads: the child starts none, and uses none of their locks but at its own risk
        pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            seal(write_end, seconds)
            os.write(write_end, question()[:_MOST_BYTES] + b"\n")
        finally:
            os._exit(0)  # before any finally of the program's, or an exception that leaves here
    try:
        os.close(write_end)
        return _answer(read_end, time.monotonic() + seconds)
    finally:
        os.close(read_end)
        _end(pid)


def _answer(read_end: int, end: float) -> bytes | None:
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    held = b""
    while (left := end - time.monotonic()) > 0:
        if poll.poll(max(1, 1000 * left)):
            more = os.read(read_end, _MOST_BYTES)
            if not more:
                break
            held += more
    return held[:-1] if held.endswith(b"\n") else None


def _end(pid: int) -> None:
    """Take leave of the child: it has answered, or is ended now. No other child is waited for."""
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
