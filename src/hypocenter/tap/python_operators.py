"""Let torch's operators that are written in Python run as they are while a torch-function mode of ours listens.

Such an operator (`F.cross_entropy`, `Tensor.backward`) asks first whether somebody overrides it; for a mode of ours it
would be called a second time, out of frames that the user then finds in a traceback. What it calls comes to the mode.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode, _push_mode

_MODULES = ("torch.nn.functional", "torch.functional", "torch._tensor")
_kept: list[Callable[..., bool]] = []  # the compiler knows them by address: no other function is to get it
_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class PythonOperators:
    """Lets Python operators pass by the mode while it is on the stack.

    Attributes:
        is_on: whether it is.
    """

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._places = [
            (vars(sys.modules[module]), name, vars(sys.modules[module])[name])
            for module in _MODULES
            for name in _QUESTIONS
            if name in vars(sys.modules[module])
        ]
        self._answers = {original: _answer(original, mode) for _, _, original in self._places}
        for answer in self._answers.values():
            _let_torchscript_read(answer)
        self.is_on = False

    def pass_by(self) -> None:
        """Let the operators run from here on without the mode seeing them."""
        self.is_on = True
        for place, name, original in self._places:
            if place[name] is original:  # nobody else has put something there
                place[name] = self._answers[original]

    def put_back(self) -> None:
        """Let the operators ask again if somebody overrides them, as before."""
        self.is_on = False
        for place, name, original in self._places:
            if place[name] is self._answers[original]:
                place[name] = original


def _let_torchscript_read(answer: Callable[..., bool]) -> None:
    """Make our answer a builtin to TorchScript's compiler, which reads the source of these operators."""
    builtins: Any = sys.modules.get("torch.jit._builtins")
    if hasattr(builtins, "_register_builtin"):
        _kept.append(answer)
        builtins._register_builtin(answer, "aten::has_torch_function")


def _answer(original: Callable[..., bool], mode: TorchFunctionMode) -> Callable[..., bool]:
    def has_torch_function(*args: Any) -> bool:
        if (
            torch.compiler.is_compiling()
            or _len_torch_function_stack() != 1
            or _get_current_function_mode() is not mode
        ):
            return original(*args)
        _pop_mode()
        try:
            return original(*args)
        finally:
            _push_mode(mode)

    return has_torch_function
