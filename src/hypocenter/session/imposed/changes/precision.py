"""`precision=float32`: regions of autocast compute in float32, and TF32 is off."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.autocast_mode import autocast


def begin(value: str, note: Callable[[str], None]) -> None:
    """Replace the constructor of autocast, which its older forms call too."""
    original = autocast.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self._enabled:
            note(f"a region of autocast to {str(self.fast_dtype).removeprefix('torch.')} computes in float32")
            self._enabled = False

    autocast.__init__ = __init__  # type: ignore[method-assign]
    torch.set_float32_matmul_precision("highest")
