"""A thread beside training that waits in C++: for the store of the job, for other ranks.

Where the interpreter ends while such a thread comes back from C++, CPython ends the thread by `pthread_exit`; that
unwinds through destructors that may not throw, and the process dies of "terminate called without an active exception"
with exit code 134. So the exit waits for it, a bounded time.
"""

from __future__ import annotations

import atexit
import threading
from abc import ABC, abstractmethod


class SideThread(threading.Thread, ABC):
    """A daemon thread that the interpreter's exit calls off and waits for.

    Args:
        patience_s: longest that the exit waits.
    """

    def __init__(self, name: str, patience_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self._patience_s = patience_s

    @abstractmethod
    def work(self) -> None:
        """What is to be done. It handles its own errors."""

    @abstractmethod
    def call_off(self) -> None:
        """Nobody wants it any more: come to an end soon. Called from another thread."""

    def start(self) -> None:
        """Begin; from here on the exit knows of it."""
        atexit.register(self._leave)
        super().start()

    def run(self) -> None:
        """In the thread."""
        try:
            self.work()
        finally:
            atexit.unregister(self._leave)

    def _leave(self) -> None:
        self.call_off()
        self.join(self._patience_s)
