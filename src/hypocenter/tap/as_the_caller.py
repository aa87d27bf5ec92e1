"""Call a function of torch for the user's code as if that had called it: for warnings, and for tracebacks.

A torch-function mode stands between the user's line and torch. A warning that torch raises names the innermost Python
frame, and Python prints it once for each such place; so the call is made from a frame that has the file, the line and
the globals of the user's. An exception takes along every frame that it passes; ours are taken out again.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from torch.overrides import handle_torch_function

KEPT = 4096  # lines whose frames are remembered; a program has a few dozen lines of loss code

_call: Any = lambda func, args, kwargs: func(*args, **kwargs)  # noqa: E731 (one line: all of it gets the user's)
_HANDLER = handle_torch_function.__code__
_known: dict[tuple[int, int], tuple[CodeType, FunctionType]] = {}


def standing_for(frame: FrameType | None) -> Callable[[Any, Any, Any], Any]:
    """Return a function `(func, args, kwargs)` whose frame looks to a warning like the one that called torch.

    Args:
        frame: from which torch called the mode: the user's, or that of torch's own Python code, which is called again.
    """
    if frame is not None and frame.f_code is _HANDLER and frame.f_back is not None:
        frame = frame.f_back.f_back  # of who called the function of torch that the mode is asked about
    if frame is None:
        return _call
    code, line = frame.f_code, frame.f_lineno
    known = _known.get((id(code), line))
    if known is not None and known[1].__globals__ is frame.f_globals:
        return known[1]
    if len(_known) >= KEPT:
        _known.clear()
    looks_alike = _call.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_firstlineno=line or code.co_firstlineno
    )
    function = FunctionType(looks_alike, frame.f_globals, code.co_name)
    _known[id(code), line] = code, function  # with the code, so that no other one gets its id
    return function


def take_out(error: BaseException) -> None:
    """Take the frames of the mode out of what an exception has passed so far. To be followed by a bare `raise`.

    Args:
        error: caught in the mode, whose frame therefore comes first.
    """
    trace = error.__traceback__
    if trace is None:
        return
    caller, trace = trace.tb_frame.f_back, trace.tb_next
    if trace is not None and _is_call(trace):
        trace = trace.tb_next
    if trace is not None and caller is not None and trace.tb_frame.f_code is caller.f_code:
        trace = trace.tb_next  # Python code of torch's operators, through which the mode went a second time
    error.__traceback__ = trace


def _is_call(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_code == _call.__code__.co_code and trace.tb_frame.f_code.co_argcount == 3
