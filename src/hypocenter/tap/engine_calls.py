"""Hear of programs that call autograd's engine themselves, past `torch.autograd.backward` and `torch.autograd.grad`.

Megatron-LM's and DualPipe's schedules do, because the engine lets an output that has been sent away be emptied before
its backward. The engine is C++, and has no frame to listen in: so what stands at `Variable._execution_engine` is one
of ours, which is asked for its method. Inside a call that is heard of already it gives the engine's own: no frame more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.autograd.variable import Variable

from hypocenter.tap.own_frame import RAISED, leave_out, passed_over


class EngineBegin(Protocol):
    """Hears a call; returns what is to be called with its result or with RAISED, None if it does not care."""

    def __call__(
        self, tensors: Any, grad_tensors: Any, keep_graph: bool, create_graph: bool, inputs: Any, accumulate_grad: bool
    ) -> Callable[[Any], None] | None: ...


def hear_engine(begin: EngineBegin, is_deaf: Callable[[], bool]) -> Callable[[], None]:
    """Hear calls of autograd's engine; returns the undo.

    Args:
        is_deaf: asked first: such a call runs as if nobody were here.
    """
    owner: Any = Variable
    before = owner._execution_engine

    @passed_over
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        end = begin(*_read(*args, **kwargs))
        result = RAISED
        try:
            result = before.run_backward(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            if end is not None:
                end(result)
        return result

    class Engine(torch._C._ImperativeEngine):  # type: ignore[name-defined, misc]
        @property
        def run_backward(self) -> Any:  # type: ignore[override]
            return before.run_backward if is_deaf() else run_backward

    engine = owner._execution_engine = Engine()

    def undo() -> None:
        if owner._execution_engine is engine:
            owner._execution_engine = before

    return undo


def _read(
    tensors: Any,
    grad_tensors: Any = (),
    keep_graph: Any = False,
    create_graph: Any = False,
    inputs: Any = (),
    allow_unreachable: Any = False,
    accumulate_grad: Any = False,
) -> tuple[Any, Any, bool, bool, Any, bool]:
    """Read the parameters of the engine's method as C++ does."""
    return tensors, grad_tensors, bool(keep_graph), bool(create_graph), inputs or (), bool(accumulate_grad)
