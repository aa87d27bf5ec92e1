"""A running session of whatever framework, and which sessions this process has."""

from __future__ import annotations

import atexit
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Protocol


class Session(Protocol):
    """What is asked of a session from outside."""

    directory: Path

    def attach(self) -> None: ...
    def close(self) -> None: ...
    def forked(self) -> None: ...
    def warn(self, text: str, /) -> None: ...


class Handle:
    """A running session: a context manager; `close` ends it and writes what is left."""

    def __init__(self, session: Session, running: list[Session], *, owns: bool = True) -> None:
        self._session, self._running = session, running
        self._owns = owns  # a session that `hypocenter run` or an outer `watch` started is not ours to end

    @property
    def directory(self) -> Path:
        """The run directory: give it to `hypocenter check`."""
        return self._session.directory

    def note(self, text: str) -> None:
        """Say something once, on stderr and in run.json."""
        self._session.warn(text)

    def close(self) -> None:
        """End the session, if this handle started it. Safe to call twice."""
        if not self._owns:
            return
        self._session.close()
        atexit.unregister(self._session.close)
        if self._session in self._running:
            self._running.remove(self._session)

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def begin(session: Session, running: list[Session]) -> None:
    """Attach a session; the end of the process closes it, and a forked child has none."""
    session.attach()
    running.append(session)
    atexit.register(session.close)
    alive = weakref.ref(session)  # what is registered here stays for ever, and must not keep a model

    def forked() -> None:
        if (here := alive()) is not None:
            here.forked()

    if hasattr(os, "register_at_fork"):  # a DataLoader worker is not a rank
        os.register_at_fork(after_in_child=forked)
