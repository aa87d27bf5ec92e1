"""What keeps a stage from being decided: a program that fails, a recording that has to come from elsewhere."""

from __future__ import annotations

from hypocenter.errors import HypocenterError


class ProgramFailedError(HypocenterError):
    """A program of the plan did not end as it should."""

    slug = "program-failed"


class ElsewhereError(HypocenterError):
    """A recording that only another machine can make. `fix` is the command to run there."""

    slug = "elsewhere"
    exit_code = 5
