"""What can go wrong between ranks, told apart: it took too long, or the other side is gone."""

from __future__ import annotations

import re


class Stuck(Exception):
    """Something did not end in its time."""


def kind_of(error: BaseException) -> str:
    """`timeout` (nobody answered), `closed` (the other side ended it: a consequence), or `error`."""
    text = str(error).lower()
    if isinstance(error, Stuck) or "timed out" in text or "timeout" in text:
        return "timeout"
    if any(word in text for word in ("closed by peer", "connection reset", "broken pipe", "pair closure", "aborted")):
        return "closed"
    return "error"


def brief(error: BaseException) -> str:
    """The first line of what it says, without the stack that C++ adds."""
    text = str(error).strip().split("\n")[0].split("Exception raised from")[0].split(". This is typically")[0]
    text = re.sub(r"\[\S+\.(cc|cpp|h):\d+\] ", "", text).strip()
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
