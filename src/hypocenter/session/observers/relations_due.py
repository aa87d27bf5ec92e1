"""When relations are looked at by default, in any framework, and how long that may take."""

from __future__ import annotations

DUE, THEN_EVERY = frozenset({1, 2, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512}), 1000  # steps
AGAIN_S, SHARE = 0.5, 0.002  # what it may take once all was asked: so much, or of the time of the run


def is_due(step: int) -> bool:
    """Return whether relations are looked at by default. A schedule of so many words takes a call for each."""
    return step in DUE or step % THEN_EVERY == 0
