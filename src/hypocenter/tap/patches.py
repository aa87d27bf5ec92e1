"""Methods of a framework's classes that call us, and how they become again what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """Patches of one session. Only methods of classes: `from package import function` would keep ours for ever."""

    def __init__(self) -> None:
        self.held: list[tuple[type, str, Any, Any]] = []  # (class, name, what it had itself or _MISSING, ours)

    def wrap(self, owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace `owner.name` with `make(original)`; the original may be inherited."""
        had = vars(owner).get(name, _MISSING)
        ours = make(getattr(owner, name))
        self.held.append((owner, name, had, ours))
        setattr(owner, name, ours)

    def undo(self) -> None:
        """Take all off for good. Safe to call twice."""
        held, self.held = self.held, []
        for owner, name, had, ours in reversed(held):
            put_back(owner, name, had, ours)


def put_back(owner: type, name: str, had: Any, ours: Any) -> None:
    """Undo one patch, unless somebody has patched the method again since."""
    if vars(owner).get(name) is not ours:
        return  # somebody patched over us: theirs stays
    if had is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, had)
