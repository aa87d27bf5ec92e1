"""A thread beside training that waits in C++: for the store of the job, for other ranks.

Where the interpreter ends while such a thread comes back from C++, CPython ends the thread by `pthread_exit`; that
unwinds through destructors that may not throw, and the process dies of "terminate called without an active exception"
with exit code 134. So the exit waits for it, a bounded time.
"""

from __future__ import annotations

import atexit
import ctypes
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
        """Do what the thread is for. It handles its own errors."""

    @abstractmethod
    def call_off(self) -> None:
        """Ask the thread to end soon, as nobody wants its result any more. Called from another thread."""

    def start(self) -> None:
        """Start the thread; from here on the interpreter's exit calls it off and waits for it."""
        atexit.register(self._leave)
        super().start()

    def run(self) -> None:
        """Run `work` in the thread; the exit no longer waits for it then."""
        try:
            self.work()
        finally:
            atexit.unregister(self._leave)

    def _leave(self) -> None:
        self.call_off()
        self.join(self._patience_s)


def never_freed(what: object) -> None:
    """Keep an object, and all that it refers to, for ever, by one reference more that is never given back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))
