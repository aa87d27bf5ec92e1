"""FSDP1: the parts of a flat parameter's gradient, before it is reduced and scattered."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hypocenter.tap.before_reduction import Local, Tell, Undo, around

needs = "torch.distributed.fsdp._runtime_utils"


def attach(tell: Tell, warn: Callable[[str], None]) -> Undo:
    """Look at gradients before both functions that reduce; returns the undo."""

    def before(state: Any, handle: Any, *_: Any) -> None:
        flat = handle.flat_param
        if flat.grad is not None:
            tell(list(_parts(handle, flat)))

    module = importlib.import_module(needs)
    undos = [around(module, name, before) for name in ("_reduce_grad", "_reduce_grad_no_shard")]

    def undo() -> None:
        for each in reversed(undos):
            each()

    return undo


def _parts(handle: Any, flat: Any) -> Any:
    """Yield each parameter's part of the gradient; padding between them has no name."""
    names = iter(flat._fqns)
    offset = 0
    gradient = flat.grad.view(-1)
    for n, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            yield Local(flat, gradient[offset : offset + n], next(names), handle._fully_sharded_module)
        offset += n
