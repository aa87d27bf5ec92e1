"""In: a command line. Out: an exit code, data on stdout, talk on stderr. One file a command."""

from __future__ import annotations

from hypocenter.cli.entry import main
from hypocenter.cli.group import hypocenter

__all__ = ["hypocenter", "main"]
