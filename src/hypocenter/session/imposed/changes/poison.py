"""`poison=on` or `off`: whether memory that torch gives out fresh is filled (NaN, the largest integer).

torch does so itself where deterministic algorithms are on, unless it is told not to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def begin(value: str, note: Callable[[str], None]) -> None:
    """Set torch's switch."""
    torch.utils.deterministic.fill_uninitialized_memory = value == "on"  # type: ignore[attr-defined]
    note(value)
