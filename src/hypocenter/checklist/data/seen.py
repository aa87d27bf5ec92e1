"""What a check saw on one side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypocenter.checklist.data.side import Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """`value` is what the two sides are compared by; None: it cannot be told, and `why` says why."""

    value: str | None
    why: str = ""
    fault: str = ""  # what is wrong whatever the other side has
    fix: str = ""


Check = Callable[[Side], Seen]
