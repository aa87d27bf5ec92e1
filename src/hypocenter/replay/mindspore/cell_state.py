"""What MindSpore's cells keep in Python, put back after a replay: see hypocenter.replay.python_state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.replay import python_state
from hypocenter.replay.python_state import CONSTANTS, Kind, Undo
from hypocenter.tap.mindspore.mentions import is_library, mentioned_through


def kept(cells: Iterable[Any], function: Any) -> contextlib.AbstractContextManager[list[Any]]:
    """Inside this block the function, which calls these cells, may be called; after it all is as it was."""
    return python_state.kept(_MINDSPORE, cells, _functions(function))


def why_not(cells: Iterable[Any], function: Any) -> str:
    """What they hold that cannot be put back, in words, or ''."""
    return python_state.why_not(_MINDSPORE, cells, _functions(function))


def _functions(function: Any) -> list[Any]:
    """It may be MindSpore's, around the user's."""
    found = [function, *mentioned_through(function)]
    return [each for each in found if isinstance(each, (FunctionType, MethodType)) and not is_library(each)]


def _copied(tensor: Any) -> Undo:
    before = tensor.asnumpy().copy()

    def undo() -> None:
        if tensor.asnumpy().tobytes() != before.tobytes():
            tensor.assign_value(ms.Tensor(before, tensor.dtype))

    return undo


def _of_generator(value: Any) -> Undo | None:
    if not isinstance(value, ms.Generator):
        return None
    state = value.get_state()
    return lambda: value.set_state(state)


_MINDSPORE = Kind(
    own=frozenset(vars(nn.Cell())),
    forward="construct",
    hooks=("_lazy_forward_hook", "_lazy_forward_pre_hook", "_lazy_backward_hook", "_lazy_backward_pre_hook"),
    left_alone=(nn.Cell, ms.Parameter),
    tensor=ms.Tensor,
    constants=CONSTANTS | {type(ms.float32), type(ms.int32), type(ms.bool_)},
    copied=_copied,
    generator=_of_generator,
)
