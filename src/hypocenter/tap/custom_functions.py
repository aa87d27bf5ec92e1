"""Calls of a `torch.autograd.Function` of the program's own, outside of modules: each is noted as one operation.

No torch-function mode is told of them. A loss that a program computes by one (fused, in chunks, with a gradient that
was made before) would be a value that nobody saw being made. It is called again in a replay, under a trace that sees
every operator of its forward and its backward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _len_torch_function_stack

from hypocenter.tap.own_frame import RAISED, CannotListen, OwnFrame
from hypocenter.tap.source import user_frame
from hypocenter.tap.state import capture_ambient, capture_rng
from hypocenter.tap.tape import Event
from hypocenter.tap.transforms import TransformedCall
from hypocenter.tap.user_code import UserCode

_COLLECTIVES = frozenset({"torch.distributed.nn.functional"})  # those with a gradient, which programs call
_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]


class CustomFunctions:
    """Notes calls of the program's autograd functions on the tapes of its own operations.

    Args:
        user_code: notes what comes before and after them.
        fail: told why nothing is noted any more.
    """

    def __init__(self, user_code: UserCode, fail: Callable[[str], None]) -> None:
        self._user_code, self._fail = user_code, fail
        self._is_off = False

    def attach(self) -> Callable[[], None]:
        """Start watching; returns the undo. Nothing is seen in a version of torch whose calls cannot be heard."""
        try:
            frame = OwnFrame(vars(torch.autograd.Function)["apply"].__func__, self._begin)
            frame.listen()
        except (CannotListen, KeyError, AttributeError):
            return lambda: None
        return frame.stop

    def _begin(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Any], None] | None:
        code = self._user_code
        is_heard = code.is_active and not code.is_inside and bool(_len_torch_function_stack())  # also: in this thread
        if self._is_off or not is_heard or not torch.is_grad_enabled() or _level() is not None:
            return None
        module = function.__module__
        if module.startswith("torch.") and module not in _COLLECTIVES:  # compiled code among others: not its own
            return None
        try:
            return self._noted(function, args, kwargs)
        except Exception as error:
            self._switch_off(error)
            return None

    def _noted(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Any], None]:
        frame = user_frame(sys._getframe(1))
        event = Event(
            function=TransformedCall(function.apply), ambient=capture_ambient(), rng=capture_rng(),
            code=frame.f_code if frame else None, line=frame.f_lineno if frame else 0,
        )  # fmt: skip
        n_before = len(self._user_code.tape.events)
        self._user_code.suspend()
        self._user_code.is_in_function = True

        def end(result: Any) -> None:
            self._user_code.is_in_function = False
            try:
                calls_modules = len(self._user_code.tape.events) != n_before  # which are noted by themselves
                if result is not RAISED and not calls_modules:
                    self._user_code.note_call(event, args, kwargs, result)
                self._user_code.resume()
            except Exception as error:
                self._switch_off(error)

        return end

    def _switch_off(self, error: Exception) -> None:
        """Note no more calls after an error of ours: the user's call must not fail because of us."""
        self._is_off = True
        self._fail(f"calls of the program's own autograd functions are not noted any more: {error!r}")
