"""Compiled and captured code runs as it is written, for the time of a replay: an op trace can see into nothing else.

What `make_graphed_callables` has put in place of a module's `forward` replays a graph, which writes its results and
gradients to the same memory each time: `p.grad` may lie there, and a replay of ours would overwrite it.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hypocenter.unwarned import unwarned

_GRAPHED = "make_graphed_forward"  # torch's, and Transformer Engine's


class Eagerly(contextlib.ExitStack):
    """Keep compiled or captured code from running as such inside this block.

    Args:
        parts: the modules that are called in it, and all that are inside them.

    Attributes:
        in_place_of_compiled: whether anything that would have done so was called. Other bits come of that.
    """

    def __init__(self, parts: Iterable[torch.nn.Module] = ()) -> None:
        super().__init__()
        self.in_place_of_compiled = False
        self._parts = parts

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
        for module in self._parts:
            if "forward" not in vars(module):  # of most: no call for each
                continue
            captured = vars(module)["forward"]
            if (written := _beneath_graph(captured)) is not None:
                self.in_place_of_compiled = True
                module.forward = written
                self.callback(setattr, module, "forward", captured)
        return self


def _beneath_graph(forward: Any) -> Callable[..., Any] | None:
    """Return the `forward` that a graph was captured of; None if this one is not captured."""
    if not inspect.isfunction(forward) or _GRAPHED not in forward.__qualname__:
        return None
    return inspect.getclosurevars(forward).nonlocals.get("orig_fwd")
