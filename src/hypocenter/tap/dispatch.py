"""What dispatch modes of ours have in common, and what can be asked of whatever is dispatched to them.

Higher-order operators (FlexAttention, `cond`) are dispatched too: they take functions, and have no schema and no tags.
To a mode that does not say that it knows them torch raises an error. What they do inside is not shown to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """A dispatch mode that higher-order operators come to as well."""

    supports_higher_order_operators = True


class ReplayMode(Mode):
    """A mode of what is done again, where nothing is compiled: of other modes torch makes sure of that at each call."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled regions run eagerly in a replay, and nothing of ours may reach their tracing."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Together(contextlib.ExitStack):
    """Several modes of one replay, the first one outermost; all are told what a replay tells its mode."""

    def __init__(self, modes: Sequence[Any]) -> None:
        super().__init__()
        self._modes = modes

    def __enter__(self) -> Together:
        super().__enter__()
        for each in self._modes:
            self.enter_context(each)
        return self

    def restart(self) -> None:
        """It is done again from the beginning."""
        self._tell("restart")

    def starts_from(self, seeds: Any) -> None:
        """Forward is over, and backward starts from these gradients."""
        self._tell("starts_from", seeds)

    def ends_in(self, roots: Any) -> None:
        """These are what backward starts from."""
        self._tell("ends_in", roots)

    def _tell(self, name: str, *given: Any) -> None:
        for each in self._modes:
            getattr(each, name, lambda *_: None)(*given)


def name_of(func: Any) -> str:
    """Name an operator: `aten.mul.Tensor`, `higher_order.flex_attention`."""
    name = str(func)
    return name if "." in name else f"{func.namespace}.{name}"


def is_view(func: Any) -> bool:
    """Return whether an operator only gives another view of its argument."""
    return bool(getattr(func, "is_view", False))


def is_random(func: Any) -> bool:
    """Return whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def is_mutable(func: Any) -> bool:
    """Return whether an operator's schema says that it writes to an argument."""
    return bool(getattr(getattr(func, "_schema", None), "is_mutable", False))


def declared(func: Any) -> Sequence[Any]:
    """Return an operator's arguments as its schema has them; none without a schema."""
    return getattr(getattr(func, "_schema", None), "arguments", ())
