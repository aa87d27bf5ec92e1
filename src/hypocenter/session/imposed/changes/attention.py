"""`attention=KERNEL`: scaled dot product attention has only this kernel to choose; `own`: all that it had.

Which one torch chooses for the first calls is noted.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

_SWITCHES = {
    "flash": "enable_flash_sdp",
    "efficient": "enable_mem_efficient_sdp",
    "math": "enable_math_sdp",
    "cudnn": "enable_cudnn_sdp",
}
_CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}  # torch.nn.attention.SDPBackend
_MOST = 8  # calls whose choice is noted


def begin(value: str, note: Callable[[str], None]) -> None:
    """Set torch's switches, and note what they lead to."""
    for name, switch in _SWITCHES.items():
        set_ = getattr(torch.backends.cuda, switch, None)
        if set_ is not None and value != "own":
            set_(name == value)
    functional: Any = torch.nn.functional
    attention = functional.scaled_dot_product_attention
    n_calls = [0]

    @functools.wraps(attention)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if n_calls[0] < _MOST and not torch.compiler.is_compiling():
            n_calls[0] += 1
            note("attention is called")
            with contextlib.suppress(Exception):  # another version of torch
                choice = int(torch._fused_sdp_choice(*args, **kwargs))  # type: ignore[attr-defined]
                note(f"kernel {_CHOICES.get(choice, choice)}")
        return attention(*args, **kwargs)

    functional.scaled_dot_product_attention = noted
