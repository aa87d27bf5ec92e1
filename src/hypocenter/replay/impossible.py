"""The errors that a replay is expected to end with."""

from __future__ import annotations


class ReplayImpossible(Exception):
    """Raised where a replay cannot be done; the message says why, in the user's words."""


class OutOfTime(ReplayImpossible):
    """Raised when the time that one step may take is over."""
