"""The operator that raised: a traceback in, the innermost call that can be done again out, with its arguments.

A traceback holds frames, and frames hold arguments: of our own mode for loss code, of torch's Python functions, of
module calls. Such a call is done again under a dispatch mode; when the same exception comes, the operator that did not
return is the one that raised.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hypocenter.tap.call_site import CALLS
from hypocenter.tap.dispatch import Mode
from hypocenter.tap.user_code import UserCode

_MOST_TRIED = 4  # calls, from the innermost outwards
_COMPUTES = frozenset({"torch.nn.functional", "torch.functional", "torch.fft", "torch.linalg", "torch.special"})
"""Modules whose functions only compute. Another function of a library may run the whole program: runpy's do."""
_GOES_BACK = frozenset({"backward", "grad"})  # and runs hooks, which may wait for other ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A call that raises each time it is made. `name`: of the operator, `aten.embedding.default`, or the function."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])

    def argument_name(self, key: int | str) -> str:
        """Return the operator's name of an argument."""
        schema = getattr(self.func, "_schema", None)
        if isinstance(key, int) and schema is not None and key < len(schema.arguments):
            return str(schema.arguments[key].name)
        return f"in[{key}]" if isinstance(key, int) else key


def frames_of(trace: TracebackType | None) -> list[FrameType]:
    """Return the frames of a traceback, outermost first."""
    found: list[FrameType] = []
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def failed_call(error: BaseException, *, may_call: Callable[[nn.Module], bool]) -> FailedCall | None:
    """Return the operator that raised this exception, or the function around it where no operator is to be seen.

    Args:
        may_call: whether the forward of a module may be run again. It is the program's own code.
    """
    for n_tried, call in enumerate(_calls(frames_of(error.__traceback__), may_call)):
        if n_tried == _MOST_TRIED:
            break
        watch = _Unreturned()
        again = _exception_of(call, watch)
        if again is None or type(again) is not type(error) or str(again) != str(error):
            continue
        if watch.call is not None or not isinstance(getattr(call.func, "__self__", None), nn.Module):
            return watch.call or call
        return None  # the module's own Python code raised
    return None


class _Unreturned(Mode):
    """Note the operator that did not return."""

    def __init__(self) -> None:
        super().__init__()
        self.call: FailedCall | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception:
            if self.call is None:
                self.call = FailedCall(name=str(func), func=func, args=tuple(args), kwargs=dict(kwargs))
            raise


def _exception_of(call: FailedCall, watch: TorchDispatchMode) -> Exception | None:
    silence = io.StringIO()  # what the program prints was printed when it ran
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence), torch.no_grad(), watch:
        try:
            call.func(*call.args, **call.kwargs)
        except Exception as error:
            return error
    return None


def _calls(frames: list[FrameType], may_call: Callable[[nn.Module], bool]) -> Iterator[FailedCall]:
    """Yield the calls that can be read off frames, from the innermost outwards."""
    for frame in reversed(frames):
        code, values = frame.f_code, frame.f_locals
        if code is UserCode.__torch_function__.__code__:
            func = values["func"]
            if (name := getattr(func, "__name__", "?")) not in _GOES_BACK:
                yield FailedCall(name=name, func=func, args=tuple(values["args"]), kwargs=dict(values["kwargs"]))
        elif code in CALLS:
            module = values.get("self")
            if isinstance(module, nn.Module) and may_call(module):
                kwargs = dict(values.get("kwargs") or {})
                yield FailedCall(
                    name=type(module).__name__, func=module.forward, args=tuple(values.get("args") or ()), kwargs=kwargs
                )
        elif frame.f_globals.get("__name__") in _COMPUTES and (function := _function_of(frame, code)) is not None:
            named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if all(name in values for name in named) and "self" not in named:
                yield FailedCall(name=code.co_name, func=function, kwargs={name: values[name] for name in named})


def _function_of(frame: FrameType, code: CodeType) -> Callable[..., Any] | None:
    """Return the plain function of a frame; None for a method or a wrapped one, which cannot be found so."""
    function = frame.f_globals.get(code.co_name)
    return function if getattr(function, "__code__", None) is code and not code.co_flags & 0x0C else None  # *args
