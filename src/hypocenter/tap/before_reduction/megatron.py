"""Megatron-Core: `main_grad` of the parameters of a bucket group, before its collective."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hypocenter.tap.before_reduction import Local, Tell, Undo, around

needs = "megatron.core.distributed.param_and_grad_buffer"


def attach(tell: Tell, warn: Callable[[str], None]) -> Undo:
    """Look at gradients before `start_grad_sync`; returns the undo."""
    module = importlib.import_module(needs)
    kind = getattr(module, "_ParamAndGradBucketGroup", None) or module._ParamAndGradBucket  # 0.9 and before: a bucket

    def before(group: Any, *_: Any, **__: Any) -> None:
        if getattr(group, "is_first_batch", False) and getattr(group, "grad_reduce_handle", None) is not None:
            return  # it was dispatched already
        params = [p for bucket in getattr(group, "buckets", (group,)) for p in _in_order(bucket)]
        tell([Local(p, p.main_grad) for p in params if getattr(p, "main_grad", None) is not None])

    return around(kind, "start_grad_sync", before)


def _in_order(bucket: Any) -> Any:
    return getattr(bucket, "params_list", None) or bucket.params
