"""A hint for a name that was typed wrong."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest(typed: str, known: Sequence[str]) -> str:
    """`did you mean 'html'?`, or where to find all names."""
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(typed.lower(), list(lower), n=1, cutoff=0.5)
    return f"did you mean {lower[close[0]]!r}?" if close else "see them all with `hypocenter list`"
