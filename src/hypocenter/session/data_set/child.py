"""A question that is answered by a forked child, so that whatever the answer takes changes nothing here.

Training goes on meanwhile: the answer is looked for at later updates.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

import torch

from hypocenter.session.data_set.sealed import seal
from hypocenter.unwarned import unwarned

_MOST_BYTES = 1 << 16


class Question:
    """A child that was forked to answer, and what it has said so far.

    Args:
        question: gives the answer, in the child.
        seconds: after which the child is ended, and there is none.

    Attributes:
        answer: None until the child has told it, and if it never does.
        is_open: an answer may come yet.
    """

    def __init__(self, question: Callable[[], bytes], seconds: float) -> None:
        self.answer: bytes | None = None
        self.is_open = True
        self._end = time.monotonic() + seconds
        self._held = b""
        self._read_end, write_end = os.pipe()
        with unwarned():  # of a fork beside threads: the child starts none, and uses their locks at its own risk
            try:
                self._pid = os.fork()
            except OSError:  # no memory, or too many processes
                os.close(self._read_end)
                os.close(write_end)
                raise
        if self._pid == 0:
            try:
                os.close(self._read_end)
                seal(write_end, seconds)
                torch.set_num_threads(1)  # those of the parent are not there
                os.write(write_end, question()[:_MOST_BYTES] + b"\n")
            finally:
                os._exit(0)  # before any finally of the program's, or an exception that leaves here
        os.close(write_end)

    def look(self, seconds: float = 0.0) -> None:
        """See if the answer is there; wait for it so long at most."""
        poll, end = select.poll(), min(self._end, time.monotonic() + seconds)
        poll.register(self._read_end, select.POLLIN)
        while self.is_open and poll.poll(max(0.0, 1000 * (end - time.monotonic()))):
            more = os.read(self._read_end, _MOST_BYTES)
            self._held += more
            if not more:
                self.answer = self._held[:-1] if self._held.endswith(b"\n") else None
                self.close()
        if time.monotonic() >= self._end:
            self.close()

    def close(self) -> None:
        """Take leave of the child: it has answered, or is ended now. No other child is waited for."""
        if not self.is_open:
            return
        self.is_open = False
        os.close(self._read_end)
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


def ask(question: Callable[[], bytes], seconds: float) -> bytes | None:
    """Return the answer of a forked child; None if there is none after so many seconds."""
    asked = Question(question, seconds)
    asked.look(seconds)
    asked.close()
    return asked.answer
