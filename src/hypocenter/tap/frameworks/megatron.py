"""Megatron-Core's optimizers: their loss scale, their skips, and gradients under the model's names.

One `step()` of a MegatronOptimizer, or of the ChainedOptimizer around several, is one update: a scaled one with a grad
scaler (fp16), a plain one without (bf16, fp32). It is looked at before `prepare_grads`, which copies the gradients into
the main parameters, takes the scale out of the copies and updates the scaler: so what is seen are the model parameters'
own `main_grad` (in Megatron's gradient buffer, summed over micro-batches, reduced over the data-parallel ranks by
`finalize_model_grads`), with the scale in them.

    Float16OptimizerWithFloat16Params   the whole `main_grad` of each parameter (of its tensor-parallel part) here
    DistributedOptimizer                the range of `main_grad` that this rank updates, reduced; of parameters that
                                        other ranks update, this rank's own sum as the reduce-scatter left it

Nothing here communicates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hypocenter.tap.frameworks.door import Door
from hypocenter.tap.scaled import PlainUpdate, ScaledUpdate, ScalerState

needs = "megatron.core.optimizer"

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def attach(door: Door) -> Callable[[], None]:
    """Report steps of Megatron's optimizers as updates; returns the undo."""
    from megatron.core.optimizer import optimizer as megatron

    kinds = (megatron.MixedPrecisionOptimizer, megatron.FP32Optimizer, megatron.ChainedOptimizer)
    undos = [_watch(kind, door) for kind in kinds]

    def undo() -> None:
        for each in undos:
            each()

    return undo


def _watch(kind: Any, door: Door) -> Callable[[], None]:
    original = kind.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        update = _update(self, door)
        if update is None:
            return original(self, *args, **kwargs)
        if isinstance(update, PlainUpdate):
            with door.plain_step(update):
                return original(self, *args, **kwargs)
        with door.scaled_step(update):
            result = original(self, *args, **kwargs)
            update.found_inf[update.device] = any(bool(part.found_inf.item()) for part in _scaled_parts(self))
        return result

    kind.step = step

    def undo() -> None:
        if kind.step is step:
            kind.step = original

    return undo


def _update(optimizer: Any, door: Door) -> ScaledUpdate | PlainUpdate | None:
    try:
        gradients = [pair for part in _parts(optimizer) for pair in _gradients(part)]
        scaler = next((part.grad_scaler for part in _scaled_parts(optimizer)), None)
        if scaler is None:
            return PlainUpdate(optimizer=optimizer, gradients=gradients)
        state = _state(scaler)
        return ScaledUpdate(scaler=scaler, optimizer=optimizer, read_state=lambda: state, gradients=gradients)
    except Exception as error:  # another version of Megatron-Core
        door.warn(f"steps of Megatron's {type(optimizer).__name__} are seen through torch only: {error!r}")
        return None


def _parts(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizers of a chain, or the one that this is."""
    if hasattr(optimizer, "chained_optimizers"):
        for each in optimizer.chained_optimizers:
            yield from _parts(each)
    else:
        yield optimizer


def _scaled_parts(optimizer: Any) -> Iterator[Any]:
    return (part for part in _parts(optimizer) if getattr(part, "grad_scaler", None) is not None)


def _gradients(optimizer: Any) -> Pairs:
    if getattr(optimizer, "is_stub_optimizer", False):  # this rank has no parameters
        return []
    if hasattr(optimizer, "model_param_gbuf_map"):
        return _of_distributed(optimizer)
    if hasattr(optimizer, "float16_groups"):
        groups: list[list[torch.Tensor]] = [*optimizer.float16_groups, *optimizer.fp32_from_fp32_groups]
    else:
        groups = [group["params"] for group in optimizer.param_groups]
    params = [p for group in groups for p in group]
    return [(p, grad) for p in params if (grad := _main_grad(p)) is not None]


def _of_distributed(optimizer: Any) -> Pairs:
    pairs: Pairs = []
    mine: set[int] = set()
    for group in (*optimizer.model_float16_groups, *optimizer.model_fp32_groups):
        for param in group:
            mine.add(id(param))
            grad = _main_grad(param)
            if grad is not None:
                part = optimizer._get_model_param_range_map(param)["param"]
                pairs.append((param, grad.view(-1)[part.start : part.end]))
    for buffer in optimizer.buffers:
        for param in buffer.params:
            grad = _main_grad(param)
            if id(param) not in mine and grad is not None:
                pairs.append((param, grad))
    return pairs


def _main_grad(param: Any) -> torch.Tensor | None:
    grad = getattr(param, "main_grad", None)
    return grad if grad is not None else param.grad


def _state(scaler: Any) -> ScalerState:
    is_dynamic = hasattr(scaler, "growth_interval")
    tracker = getattr(scaler, "_hysteresis_tracker", None)
    return ScalerState(
        kind=type(scaler).__name__,
        scale=float(scaler.scale),
        is_dynamic=is_dynamic,
        growth_tracker=int(scaler._growth_tracker) if is_dynamic else None,
        growth_interval=int(scaler.growth_interval) if is_dynamic else None,
        growth_factor=float(scaler.growth_factor) if is_dynamic else None,
        backoff_factor=float(scaler.backoff_factor) if is_dynamic else None,
        min_scale=float(scaler.min_scale) if is_dynamic else None,
        hysteresis=max(0, int(tracker) - 1) if tracker is not None else None,
    )
