"""A running session of whatever framework, and which sessions this process has."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from hypocenter.diagnose.in_a_line import in_a_line
from hypocenter.nouns import Diagnosis
from hypocenter.session.guard import say
from hypocenter.tap.weakly import Ref

MOST_ROWS = 500_000  # of a recording that is diagnosed when training ends: a second or two


class Session(Protocol):
    """What is asked of a session from outside it."""

    directory: Path

    def attach(self) -> None: ...
    def close(self) -> None: ...
    def forked(self) -> None: ...
    def warn(self, text: str, /) -> None: ...


class Handle:
    """A running session: a context manager; `close` ends it, writes what is left and says in a line how it went."""

    def __init__(
        self, session: Session, running: list[Session], *, owns: bool = True, rank: Callable[[], tuple[int, int]]
    ) -> None:
        self._session, self._running, self._rank = session, running, rank
        self._owns = owns  # a session that `hypocenter run` or an outer `watch` started is not ours to end
        self._pid = os.getpid()
        if owns:
            begin(session, running, self.close)

    @property
    def directory(self) -> Path:
        """The run directory: give it to `hypocenter check`."""
        return self._session.directory

    def note(self, text: str) -> None:
        """Say something once, on stderr and in run.json."""
        self._session.warn(text)

    def diagnosis(self) -> Diagnosis:
        """Return what is wrong with the run as far as it is recorded, like `hypocenter check`; can be called any time.

        Raises:
            RecordingError: nothing is recorded yet.
        """
        return self._diagnosed()[1]

    def close(self) -> None:
        """End the session, if this handle started it. Safe to call twice."""
        if not self._owns:
            return
        self._session.close()
        atexit.unregister(self.close)
        if self._session in self._running:
            self._running.remove(self._session)
            if self._pid == os.getpid():
                with contextlib.suppress(Exception):  # the program has trained: nothing of ours may fail it now
                    self._say_how_it_went()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hypocenter recording to {self.directory}>"

    def _repr_html_(self) -> str:
        """Return the findings as HTML, for a notebook."""
        from hypocenter.report.formats import terminal

        try:
            return terminal.render_html(*self._diagnosed())
        except Exception as error:
            return terminal.as_html(f"{self!r}: {error}")

    def _diagnosed(self) -> tuple[Any, Diagnosis]:
        from hypocenter.diagnose.diagnosis import diagnose
        from hypocenter.record.reader import open_run

        recorded = open_run(self.directory)
        return recorded, diagnose(recorded)

    def _say_how_it_went(self) -> None:
        """Print the verdict and the path; of several ranks the path alone, as the others may not have written all."""
        from hypocenter.record.reader import open_run

        rank, world_size = self._rank()
        if rank != 0 or not any(self.directory.glob("rank-*")):
            return
        recorded = open_run(self.directory)
        is_small = max(world_size, recorded.run.world_size) == 1 and recorded.n_rows <= MOST_ROWS
        verdict = in_a_line(self.diagnosis()) if is_small else "recorded"
        near = os.path.relpath(self.directory)
        shown = str(self.directory) if near.startswith("..") else near
        say(f"{verdict}; more: hypocenter check {shown}")


def begin(session: Session, running: list[Session], close: Callable[[], None] | None = None) -> None:
    """Attach a session, close it at the end of the process, and switch it off in a forked child.

    Args:
        close: what the end of the process calls; the session's own when None.
    """
    session.attach()
    running.append(session)
    atexit.register(close or session.close)
    alive = Ref(session)  # what is registered here stays for ever, and must not keep a model

    def forked() -> None:
        if (here := alive()) is not None:
            here.forked()

    if hasattr(os, "register_at_fork"):  # a DataLoader worker is not a rank
        os.register_at_fork(after_in_child=forked)
