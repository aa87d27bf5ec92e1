"""In: Evidence. Out: a Verdict or None. One file per cause; its docstring is its manual page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypocenter.manual import Manual


def manuals() -> dict[str, Manual]:
    """The manual page of every cause, by name."""
    from hypocenter.diagnose.verdicts import causes  # it imports the files of this folder

    return {name: entry.manual for name, entry in causes().items()}
