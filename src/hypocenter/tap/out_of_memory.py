"""There is no memory left, of the host or of a device: how that is told, and how what was taken is given back."""

from __future__ import annotations

import gc
import traceback
from typing import Any

import torch

_IN_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there was no memory left."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        word in str(error).lower() for word in _IN_WORDS
    )


def give_back(error: BaseException) -> None:
    """Let go of what the functions that raised this error still hold, and of the device's cache."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)  # those that are running are left alone
        seen = seen.__cause__  # what it came in the midst of may be the program's own
    gc.collect()
    accelerator: Any = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    empty = getattr(getattr(torch, accelerator.type, None), "empty_cache", None) if accelerator is not None else None
    if callable(empty):
        empty()
