"""Which framework's session writes a run directory: a process may import two, and has a session for each."""

from __future__ import annotations

from pathlib import Path

_claimed: dict[Path, str] = {}


def claims(directory: Path, framework: str) -> bool:
    """Whether this framework is the one that writes there: the first that asks, when a step is to be written."""
    return _claimed.setdefault(directory, framework) == framework


def who_claims(directory: Path) -> str:
    """The framework that writes there; empty when nobody does yet."""
    return _claimed.get(directory, "")


def release(directory: Path, framework: str) -> None:
    """Its session is over."""
    if _claimed.get(directory) == framework:
        del _claimed[directory]
