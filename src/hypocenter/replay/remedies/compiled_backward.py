"""Keeps autocast out of the compiled backward of a graph that holds an island.

AOTAutograd traces the backward of a graph under the autocast state that the graph was entered with
(`torch._functorch.config.backward_pass_autocast = "same_as_forward"`), so the backward of a block that switched
autocast off would run in low precision all the same. Eager backward runs without autocast, as torch's documentation
asks. While a graph with an island in it is compiled, the setting is therefore "off", and afterwards what it was.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

_before: list[Any] = []  # the user's setting, while a compilation with an island is under way


@torch.compiler.assume_constant_result
def trace_backward_without_autocast() -> bool:
    """Call while torch.compile traces an island: runs as plain Python, once per tracing, and leaves nothing behind."""
    with contextlib.suppress(AttributeError, ImportError):  # a torch without this setting
        from torch._dynamo.callback import callback_handler
        from torch._functorch import config

        if config.backward_pass_autocast == "same_as_forward":
            if _restore not in callback_handler.end_callbacks:
                callback_handler.register_end_callback(_restore)
            _before.append(config.backward_pass_autocast)
            config.backward_pass_autocast = "off"
    return True


def _restore(*_: Any) -> None:
    if _before:
        from torch._functorch import config

        config.backward_pass_autocast = _before[0]
        _before.clear()
