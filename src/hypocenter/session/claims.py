"""Which framework's session writes a run directory: a process may import two, and has a session for each."""

from __future__ import annotations

from pathlib import Path

_claimed: dict[Path, str] = {}


def claims(directory: Path, framework: str) -> bool:
    """Return whether this framework is the one that writes there: the first that asked, with its first step."""
    return _claimed.setdefault(directory, framework) == framework


def who_claims(directory: Path) -> str:
    """Return the name of the framework that writes there; empty when none does yet."""
    return _claimed.get(directory, "")


def release(directory: Path, framework: str) -> None:
    """Let another framework write there: the session of this one is over."""
    if _claimed.get(directory) == framework:
        del _claimed[directory]
