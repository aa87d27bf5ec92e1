"""Whether what runs on this thread now is Hypocenter's own: a mode that sees every operator leaves it out."""

from __future__ import annotations

import threading


class _Depth(threading.local):
    value = 0


_depth = _Depth()


def is_on() -> bool:
    """Whether it is."""
    return _depth.value > 0


class _Quiet:
    """Entered some twenty times a step, so it is no generator: those take 2 µs."""

    def __enter__(self) -> None:
        _depth.value += 1

    def __exit__(self, *_: object) -> None:
        _depth.value -= 1


_quiet = _Quiet()


def quietly() -> _Quiet:
    """What runs within this context is ours."""
    return _quiet
