"""`checkpointing=off`: what is under `torch.utils.checkpoint` is called as it is, and nothing is computed twice."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint as checkpointing

_OWN = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
"""Arguments that are those of `checkpoint`, not of the function under it."""


def begin(value: str, note: Callable[[str], None]) -> None:
    """Replace the function, for whoever imports it from now on."""
    original = checkpointing.checkpoint

    @functools.wraps(original)
    def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        note("a checkpointed function is called as it is")
        return function(*args, **{name: given for name, given in kwargs.items() if name not in _OWN})

    if value == "off":
        checkpointing.checkpoint = plain
