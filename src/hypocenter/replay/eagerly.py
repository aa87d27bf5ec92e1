"""Compiled functions run as they are written, for the time of a replay: an op trace can see into nothing else."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch

from hypocenter.unwarned import unwarned


class Eagerly(contextlib.ExitStack):
    """Inside this block nothing that was compiled runs as such.

    Attributes:
        in_place_of_compiled: whether anything that would have done so was called. Other bits come of that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_place_of_compiled = False

    def __enter__(self) -> Eagerly:
        super().__enter__()
        self.enter_context(torch.compiler.set_stance("force_eager"))
        self.enter_context(unwarned())  # FlexAttention warns that it is slow so
        eval_frame: Any = sys.modules.get("torch._dynamo.eval_frame")
        ask: Any = getattr(eval_frame, "_callback_from_stance", None)  # what each compiled function does first
        if ask is not None:

            def noted(callback: Any) -> Any:
                self.in_place_of_compiled = self.in_place_of_compiled or callback not in (None, False)
                return ask(callback)

            eval_frame._callback_from_stance = noted
            self.callback(setattr, eval_frame, "_callback_from_stance", ask)
        return self
