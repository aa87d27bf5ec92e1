"""Whether what runs on this thread now is Hypocenter's own: a mode that sees every operator leaves it out."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


class _Depth(threading.local):
    value = 0


_depth = _Depth()


def is_on() -> bool:
    """Whether it is."""
    return _depth.value > 0


@contextmanager
def quietly() -> Generator[None, None, None]:
    """What runs in here is ours."""
    _depth.value += 1
    try:
        yield
    finally:
        _depth.value -= 1
