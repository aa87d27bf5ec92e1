"""`threads=N`: torch computes with N threads, unless the program says otherwise."""

from __future__ import annotations

from collections.abc import Callable

import torch


def begin(value: str, note: Callable[[str], None]) -> None:
    """Set the number of threads."""
    torch.set_num_threads(int(value))
    note(f"{value} threads")
