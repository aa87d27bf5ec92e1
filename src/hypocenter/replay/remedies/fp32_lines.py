"""Run single lines of the user's source in float32: what `x.float()` and autocast off in that statement would do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Generator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hypocenter.nouns import Source
from hypocenter.replay.remedies.casts import NARROWER, Caster
from hypocenter.replay.remedies.wide_forward import autocast_off
from hypocenter.tap.source import user_frame


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
        caster = Caster(torch.float32, NARROWER[torch.float32])
        return autocast_off(torch.float32, func, caster.cast(args), caster.cast(kwargs))
