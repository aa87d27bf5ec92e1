"""DeepSpeed ZeRO 1 to 3: gradients of a bucket, before it is averaged."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from hypocenter.tap.before_reduction import Local, Tell, Undo, around

needs = "deepspeed"

_ARRIVE = "reduce_independent_p_g_buckets_and_remove_grads"  # a gradient goes into a bucket
_STAGES = (
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", "reduce_ipg_grads"),
    (
        "deepspeed.runtime.zero.stage3",
        "DeepSpeedZeroOptimizer_Stage3",
        "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
    ),
)


@contextmanager
def _where_filled(optimizer: Any) -> Generator[None, None, None]:
    """Let buckets be read in the order of what fills them: elsewhere they may hold a part, or old values.

    ZeRO 3 copies gradients into them on a stream of its own, which reduces them too and is waited for after backward;
    ZeRO 1 and 2 on the streams of backward, of which there may be several.
    """
    accelerator: Any = importlib.import_module("deepspeed.accelerator").get_accelerator()
    filling = getattr(optimizer, "reduce_and_partition_stream", None)
    if filling is not None:
        with accelerator.stream(filling):
            yield
        return
    buckets = getattr(optimizer, "ipg_buckets", {})
    for stream in {each for bucket in buckets.values() for each in getattr(bucket, "copy_streams", ())}:
        accelerator.current_stream().wait_stream(stream)
    yield


def attach(tell: Tell, warn: Callable[[str], None]) -> Undo:
    """Note gradients as they go into buckets, and look at them together when a bucket is reduced; returns the undo."""
    held: weakref.WeakKeyDictionary[Any, list[tuple[Any, Any]]] = weakref.WeakKeyDictionary()

    def arrives(optimizer: Any, param: Any, *_: Any) -> None:
        get = getattr(optimizer, "get_gradient_for_reduction", None)
        gradient = get(param) if get is not None else param.grad
        if gradient is not None:
            held.setdefault(optimizer, []).append((param, gradient))

    def reduces(optimizer: Any, *_: Any, **__: Any) -> None:
        pairs = held.pop(optimizer, [])
        if pairs:
            with _where_filled(optimizer):
                tell([Local(param, gradient) for param, gradient in pairs])

    undos: list[Undo] = []
    for module, name, reduce in _STAGES:
        with suppress(ImportError, AttributeError):
            kind = getattr(importlib.import_module(module), name)
            undos += [around(kind, reduce, reduces), around(kind, _ARRIVE, arrives)]
    if not undos:
        raise AttributeError("no optimizer of this version of DeepSpeed is known")

    def undo() -> None:
        for each in reversed(undos):
            each()

    return undo
