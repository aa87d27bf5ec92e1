"""How a global module hook lives beside torch.compile without being compiled, warned about, or compiled anew.

A hook is met in three ways: traced into a graph (`torch.compiler.is_compiling()` is True and a constant: return), run
for a module between two graphs (`inside_compiled_call()`: return, for whatever it calls would be compiled), and run
before or after a compiled module as a whole, where everything is allowed.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch

_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)

inside_compiled_call: Callable[[], object] = getattr(_eval_frame, "get_eval_frame_callback", lambda: None)
"""Something other than None while dynamo watches every Python function that is called."""


def never_compile(function: Callable[..., Any]) -> None:
    """Keep dynamo from compiling a hook as a function of its own: it would do so again for every class of module.

    Traced inline, as part of a module's call, it still is.
    """
    with contextlib.suppress(AttributeError, TypeError):  # private names: without them hooks are merely compiled too
        if hasattr(_eval_frame, "set_code_exec_strategy"):
            strategy = _eval_frame._FrameExecStrategy(_eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.DEFAULT)
            _eval_frame.set_code_exec_strategy(function.__code__, strategy)
        else:
            _eval_frame.skip_code(function.__code__)  # older torch


def silence_global_hook_warning() -> None:
    """Call before setting a global module hook: torch.compile warns about them, and to some a warning is an error."""
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
