"""Which method torch has called where the program, or a package, has put a function of its own in that method's place.

A tensor's method looks itself up by its name to tell a torch-function mode of its call. Where the name leads to
somebody's own function, which is about to call the method, the mode gets that function, and by calling it would run it
twice.
"""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

import torch

_OF_TORCH = frozenset({type(torch.Tensor.square), type(torch.square)})  # kinds of functions that are written in C
_TORCH = str(Path(torch.__file__).parent)  # torch's own methods that are written in Python are what they seem


def called(func: Any) -> Any:
    """The method of torch itself, for what a mode was given as `func`; `func` unless somebody has replaced one."""
    if type(func) in _OF_TORCH:
        return func
    getter = getattr(func, "__self__", None)
    is_getter = isinstance(getter, property)
    put_there: Any = getter if is_getter else func
    written: Any = put_there.fget if is_getter else func
    if not isinstance(written, FunctionType) or written.__code__.co_filename.startswith(_TORCH):
        return func
    name = next((name for name, each in vars(torch.Tensor).items() if each is put_there), "")
    method = vars(torch._C.TensorBase).get(name)
    if method is None:
        return func
    return method.__get__ if is_getter else method
