"""A line on stderr while training waits for a replay, so that nobody takes it for a job that hangs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator

from hypocenter.session.guard import say

PATIENCE_S = 2.0  # a shorter wait is not noticed


@contextlib.contextmanager
def stalling(doing: str, *, after_s: float = PATIENCE_S, is_told: bool = True) -> Generator[None, None, None]:
    """Say what training waits for once it has waited a while, and in the end how long it did.

    Args:
        doing: "step 25 is done again to find where its values broke".
        after_s: seconds until then.
        is_told: False on ranks that wait for the same as another that tells.
    """
    if not is_told:
        yield
        return
    told, started = threading.Event(), time.monotonic()

    def tell() -> None:
        told.set()
        _say(f"training waits: {doing}")

    timer = threading.Timer(after_s, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if told.is_set():
            _say(f"training goes on after {time.monotonic() - started:.0f} s")


def _say(text: str) -> None:
    with contextlib.suppress(Exception):  # nobody may be there to hear it
        say(text)
