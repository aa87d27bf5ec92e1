"""Whether what runs on this thread now is Hypocenter's own: a mode that sees every operator leaves it out."""

from __future__ import annotations

import threading


class _Depth(threading.local):
    value = 0


depth = _Depth()
"""How many contexts of ours the thread is in. Changed by `quietly` and by the clock of our own time."""


def is_on() -> bool:
    """Return whether what runs on this thread now is Hypocenter's own."""
    return depth.value > 0


class _Quiet:
    """The context of our own work. It is entered often and so no generator, which would take 2 µs."""

    def __enter__(self) -> None:
        depth.value += 1

    def __exit__(self, *_: object) -> None:
        depth.value -= 1


_quiet = _Quiet()


def quietly() -> _Quiet:
    """Return a context in which everything that runs counts as Hypocenter's own."""
    return _quiet
