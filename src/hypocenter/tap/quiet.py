"""Whether what runs on this thread now is Hypocenter's own: a mode that sees every operator leaves it out."""

from __future__ import annotations

import threading


class _Depth(threading.local):
    value = 0


depth = _Depth()
"""How many contexts of ours the thread is in. Changed by `quietly` and by the clock of our own time."""


def is_on() -> bool:
    """Whether it is."""
    return depth.value > 0


class _Quiet:
    """Entered often, so it is no generator: those take 2 µs."""

    def __enter__(self) -> None:
        depth.value += 1

    def __exit__(self, *_: object) -> None:
        depth.value -= 1


_quiet = _Quiet()


def quietly() -> _Quiet:
    """What runs within this context is ours."""
    return _quiet
