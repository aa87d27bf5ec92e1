"""Run single lines of the user's source in float32: what `x.float()` and autocast off in that statement would do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Generator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hypocenter.nouns import Source
from hypocenter.replay.remedies.fp32_island import LOW, _autocast_off
from hypocenter.tap.source import user_frame
from hypocenter.tap.tree import replace_tensors


@contextlib.contextmanager
def lines_in_float32(lines: Collection[Source]) -> Generator[None, None, None]:
    """Within this block every operation written in one of these lines gets its operands in float32, autocast off.

    Results stay float32, as they do in a statement of which every operand was cast with `.float()`.
    """
    with _Widened(frozenset((source.file, source.line) for source in lines)):
        yield


class _Widened(TorchFunctionMode):
    def __init__(self, places: frozenset[tuple[str, int]]) -> None:
        super().__init__()
        self._places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        frame = user_frame(sys._getframe(1))
        if frame is None or (frame.f_code.co_filename, frame.f_lineno) not in self._places:
            return func(*args, **kwargs)
        with _autocast_off():
            return func(*replace_tensors(args, _up), **replace_tensors(kwargs, _up))


def _up(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in LOW else tensor
