"""Numbers and lists as sentences have them."""

from __future__ import annotations

from collections.abc import Iterable


def counted(n: int, noun: str) -> str:
    """Return a count with its noun: "1 value", "2 values", "16,777,216 values"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def some(things: Iterable[object], at_most: int) -> str:
    """Return the first of a list, and how many more there are: "a, b, c and 4 more"."""
    texts = list(map(str, things))
    more = f" and {len(texts) - at_most:,} more" if len(texts) > at_most else ""
    return ", ".join(texts[:at_most]) + more
