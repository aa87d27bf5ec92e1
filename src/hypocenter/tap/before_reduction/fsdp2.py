"""FSDP2: the whole gradients of a group's parameters, before they are reduced and scattered."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from hypocenter.tap.before_reduction import Local, Tell, Undo, around

needs = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


def attach(tell: Tell, warn: Callable[[str], None]) -> Undo:
    """Look at gradients before `foreach_reduce`; returns the undo."""

    def before(fsdp_params: Sequence[Any], unsharded_grads: Sequence[Any], *_: Any, **__: Any) -> None:
        held = [(p.sharded_param, p._module_info) for p in fsdp_params]
        tell([Local(p, g, of.param_name, of.module) for (p, of), g in zip(held, unsharded_grads, strict=True)])

    return around(importlib.import_module(needs), "foreach_reduce", before)
