"""Put something around a function of somebody else's module, so that those who imported it before call it too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

Undo = Callable[[], None]
Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_in_place(function: FunctionType, make: Make) -> Undo:
    """Wrap a function that stays the object it is. Returns the undo.

    Args:
        function: of a module. A closure that does not keep what it wraps under the name `func` is left alone.
        make: takes the original, gives what is called instead.
    """
    freevars = function.__code__.co_freevars
    if function.__closure__ and "func" in freevars:
        cell = function.__closure__[freevars.index("func")]
        original = cell.cell_contents
        cell.cell_contents = around = make(original)

        def put_back() -> None:
            if cell.cell_contents is around:
                cell.cell_contents = original

        return put_back
    return _wrap_plain(function, make) if not freevars else lambda: None


def _forward(*args: Any, **kwargs: Any) -> Any:
    return _name_to_be_replaced(*args, **kwargs)  # type: ignore[name-defined] # noqa: F821 # pyright: ignore


def _wrap_plain(function: FunctionType, make: Make) -> Undo:
    """Give an undecorated function code that calls ours, which it finds among its module's globals."""
    own, name = function.__code__, f"_hypocenter_{function.__name__}"
    original = FunctionType(own, function.__globals__, function.__name__, function.__defaults__)
    original.__kwdefaults__ = function.__kwdefaults__
    signature = inspect.signature(function)
    function.__globals__[name] = make(original)
    jump: CodeType = _forward.__code__.replace(co_names=(name,), co_name=own.co_name, co_filename=own.co_filename)
    function.__code__ = jump
    function.__signature__ = signature  # type: ignore[attr-defined]

    def put_back() -> None:
        if function.__code__ is jump:
            function.__code__ = own
            del function.__signature__  # type: ignore[attr-defined]
            function.__globals__.pop(name, None)

    return put_back


def wrap_attribute(module: Any, name: str, make: Make) -> Undo:
    """Replace a module's attribute by a wrapper, for all who look it up there. Returns the undo."""
    original = getattr(module, name)
    replacement = make(original)
    setattr(module, name, replacement)

    def put_back() -> None:
        if getattr(module, name) is replacement:
            setattr(module, name, original)

    return put_back
