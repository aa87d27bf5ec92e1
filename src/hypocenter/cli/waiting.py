"""What a terminal shows while a command takes its time: what is done and for how long, gone when there is an answer."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from hypocenter.report import screen

AFTER_S, EVERY_S = 2.0, 0.5  # seconds until something is shown, and between two changes of it
_CLEAR = "\r\x1b[K"  # the line, from its beginning


@contextmanager
def shown_while_waiting(
    doing: str, stream: TextIO | None = None, *, after_s: float = AFTER_S
) -> Generator[None, None, None]:
    """Show `doing ... 12 s` in the last line of a terminal; nothing elsewhere, as a log would keep it.

    Args:
        doing: "hypocenter check".
        stream: stderr when None.
        after_s: a shorter wait shows nothing.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    done, started, lock, is_shown = threading.Event(), time.monotonic(), threading.Lock(), [False]

    def show() -> None:
        wait = after_s
        while not done.wait(wait):
            wait = EVERY_S
            with lock:
                if not done.is_set():
                    out.write(f"{_CLEAR}{doing} ... {time.monotonic() - started:.0f} s")
                    out.flush()
                    is_shown[0] = True

    def hide() -> None:
        with lock:
            if is_shown[0]:
                out.write(_CLEAR)
                out.flush()
                is_shown[0] = False

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    with screen.before_each_write(hide):
        try:
            yield
        finally:
            done.set()
            hide()
