"""How one who hears of module calls lives beside torch.compile without being compiled, or making it compile anew.

A call is met in three ways: traced into a graph (`torch.compiler.is_compiling()` is True and a constant: of no
interest), made between two graphs (`inside_compiled_call()`: return, for whatever we call would be compiled), and made
of a compiled module as a whole, where everything is allowed.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch

_ASKED = 64  # times: other threads count references to None too
_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def owned(get: Callable[[], object]) -> Callable[[], object]:
    """Wrap `get` such that what it returns is counted as held.

    torch 2.6 hands out its callback without counting that: each call takes one reference from None, or from the
    callback, until Python ends in the middle of a training. What is missing is added here.
    """

    def counted() -> object:
        found = get()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
        return found

    before = sys.getrefcount(None)
    held = [get() for _ in range(_ASKED)]
    if sys.version_info >= (3, 12):  # None is not counted there
        is_counted = tuple(map(int, torch.__version__.split(".")[:2])) > (2, 6)
    else:
        is_counted = sys.getrefcount(None) >= before + _ASKED // 2
    if not is_counted:
        for each in held:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    return get if is_counted else counted


inside_compiled_call = owned(getattr(_eval_frame, "get_eval_frame_callback", lambda: None))
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


def is_export(module: torch.nn.Module) -> bool:
    """Return whether it is what a strict torch.export of torch 2.6 calls for the model: our work would be exported.

    It looks like a compiled module otherwise.
    """
    return bool(getattr(getattr(module, "dynamo_ctx", None), "export", False))
