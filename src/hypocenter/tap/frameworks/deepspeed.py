"""DeepSpeed's steps: their loss scale, their skips, and gradients under the names of the user's parameters.

Each step of an fp16 optimizer becomes one scaled update (once per accumulation boundary), each step of a bf16 one (and
of ZeRO in fp32) a plain update, since DeepSpeed scales nothing there. What is known of the gradients, always without a
collective and without a copy:

    stage 0 (FP16_Optimizer, FP16_UnfusedOptimizer)   every `p.grad`, reduced over the ranks
    BF16_Optimizer    every float32 gradient that it has accumulated, reduced
    stages 1 and 2    reduced: the parts of parameters whose update this rank does, in full detail.
                      not reduced: of parameters that other ranks update, the largest magnitude and the norm that the
                      gradient had on this rank before it went into a bucket, each the largest over the micro-batches
                      (as a few elements that have them: how many were not finite is not known)
    stage 3           the same; every rank updates a part of every parameter, but of the very small ones
    optimizer offload the reduced parts, as they lie in the float32 buffer (stages 1 and 2) or before (stage 3)

In fp16 all carry the loss scale. Whether the step was skipped is DeepSpeed's own word, agreed by all ranks.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from hypocenter.tap.frameworks.door import Door
from hypocenter.tap.scaled import PlainUpdate, ScaledUpdate, ScalerState

needs = "deepspeed"

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def attach(door: Door) -> Callable[[], None]:
    """Report steps of DeepSpeed's optimizers as updates, also of those that exist already; returns the undo."""
    seen = Arrivals()
    undos: list[Callable[[], None]] = []
    for module, name, gradients in (
        ("deepspeed.runtime.fp16.fused_optimizer", "FP16_Optimizer", _of_whole_parameters),
        ("deepspeed.runtime.fp16.unfused_optimizer", "FP16_UnfusedOptimizer", _of_whole_parameters),
        ("deepspeed.runtime.bf16_optimizer", "BF16_Optimizer", _of_bf16),
        ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", _of_partitions),
        ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", _of_shards),
    ):
        with suppress(ImportError, AttributeError):
            kind = getattr(importlib.import_module(module), name)
            undos.append(_replace(kind, "step", _watched_step(door, gradients, seen)))
            if gradients is _of_whole_parameters:
                undos.append(_replace(kind, "backward", seen.scaling))
            if hasattr(kind, _REDUCE):
                undos.append(_replace(kind, _REDUCE, seen.watched))
    if not undos:
        raise ImportError("no optimizer of this version is known")

    def undo() -> None:
        for each in reversed(undos):
            each()

    return undo


_NOT_APPLIED = (
    "DeepSpeed's engine.backward of this version does not multiply the loss by the loss scale without ZeRO, but its "
    "optimizer divides the gradients by it: they are too small by that factor (ZeRO stage 1 does both). The scale is "
    "recorded as 1, which is what the gradients carry"
)
AT_MOST = 1024  # elements that stand for a gradient that is not kept: 4 KiB a parameter
_KEPT = "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition"
_REDUCE = "reduce_independent_p_g_buckets_and_remove_grads"  # of ZeRO: a gradient goes into a bucket


class Arrivals:
    """Norms of ZeRO's gradients on this rank before they were reduced, of parameters that other ranks update.

    And which of the other optimizers have scaled a loss: in some versions the engine goes round them.
    """

    def __init__(self) -> None:
        self._scaling: weakref.WeakSet[Any] = weakref.WeakSet()
        self._of: weakref.WeakKeyDictionary[Any, dict[int, tuple[torch.Tensor, torch.Tensor]]] = (
            weakref.WeakKeyDictionary()
        )
        self._elsewhere: weakref.WeakKeyDictionary[Any, frozenset[int]] = weakref.WeakKeyDictionary()

    def scaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a `backward` that multiplies the loss by the scale, to note that the optimizer has done so."""
        arrivals = self

        @functools.wraps(original)
        def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
            arrivals._scaling.add(self)
            return original(self, *args, **kwargs)

        return backward

    def has_scaled(self, optimizer: Any) -> bool:
        """Return whether the optimizer has ever multiplied a loss by its scale. ZeRO's is multiplied by the engine."""
        return not hasattr(optimizer, "loss_scale_config") or optimizer in self._scaling

    def watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ZeRO's function that puts a gradient into a bucket, to look at the gradient before."""
        arrivals = self

        @functools.wraps(original)
        def reduce(self: Any, param: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):  # what is not noted is missing in the diary; DeepSpeed must go on
                arrivals.note(self, param)
            return original(self, param, *args, **kwargs)

        return reduce

    @torch.no_grad()
    def note(self, optimizer: Any, param: torch.Tensor) -> None:
        """Queue two reductions of the parameter's gradient on its device, without waiting for them."""
        grad = _arriving(optimizer, param)
        if grad is None or id(param) not in self._parameters_elsewhere(optimizer):
            return
        largest = torch.linalg.vector_norm(grad, float("inf"), dtype=torch.float32)
        now = torch.stack((largest, torch.linalg.vector_norm(grad, dtype=torch.float32)))
        noted = self._of.setdefault(optimizer, {})
        before = noted.get(id(param))
        noted[id(param)] = (param, now if before is None else torch.maximum(before[1], now))

    def take(self, optimizer: Any) -> Pairs:
        """Return (parameter, what stands for its gradient) since the last step, and forget them."""
        return [(param, _stand_in(noted, param.numel())) for param, noted in self._of.pop(optimizer, {}).values()]

    def _parameters_elsewhere(self, optimizer: Any) -> frozenset[int]:
        known = self._elsewhere.get(optimizer)
        if known is None:
            known = frozenset(map(id, _updated_elsewhere(optimizer)))
            self._elsewhere[optimizer] = known
        return known


def _stand_in(noted: torch.Tensor, n: int) -> torch.Tensor:
    """Make a few elements with this largest magnitude and this norm (less, where a gradient is flatter)."""
    largest, norm = noted[:1], noted[1:]
    n_rest = max(1, min(n, AT_MOST) - 1)
    rest = ((norm.square() - largest.square()).clamp_min(0) / n_rest).sqrt().minimum(largest)
    return torch.cat((largest, torch.where(torch.isfinite(norm), rest, 0.0).expand(n_rest)))


def _updated_elsewhere(optimizer: Any) -> Iterator[torch.Tensor]:
    if hasattr(optimizer, "params_not_in_partition"):
        for group in optimizer.params_not_in_partition:
            yield from group
    elif hasattr(optimizer, "_get_param_partition_rank"):
        yield from (p for group in optimizer.fp16_groups for p in group if _n_here(optimizer, p) <= 0)


def _arriving(optimizer: Any, param: torch.Tensor) -> torch.Tensor | None:
    get: Callable[[torch.Tensor], torch.Tensor | None] | None = getattr(optimizer, "get_gradient_for_reduction", None)
    return get(param) if get is not None else param.grad


def _replace(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    original = getattr(owner, name)
    replacement = make(original)
    setattr(owner, name, replacement)

    def undo() -> None:
        if getattr(owner, name) is replacement:
            setattr(owner, name, original)

    return undo


def _watched_step(
    door: Door, gradients: Callable[[Any], Pairs], seen: Arrivals
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            update = _update(self, gradients, seen, door)
            if update is None:
                return original(self, *args, **kwargs)
            if isinstance(update, PlainUpdate):
                with door.plain_step(update):
                    result = original(self, *args, **kwargs)
                    update.was_skipped = bool(getattr(self, "overflow", False))
                return result
            with door.scaled_step(update):
                result = original(self, *args, **kwargs)
                update.found_inf[update.device] = bool(getattr(self, "overflow", False))
            return result

        return step

    return make


def _update(
    optimizer: Any, gradients: Callable[[Any], Pairs], seen: Arrivals, door: Door
) -> ScaledUpdate | PlainUpdate | None:
    """Describe a step; None if torch's own scaler steps inside, and is seen there, or this DeepSpeed is not known."""
    try:
        if getattr(optimizer, "torch_autocast_gradscaler", None) is not None:
            return None
        here = gradients(optimizer)
        known = {id(param) for param, _ in here}
        elsewhere = [pair for pair in seen.take(optimizer) if id(pair[0]) not in known]
        if not _has_loss_scale(optimizer):
            return PlainUpdate(optimizer=optimizer, gradients=[*here, *elsewhere])
        state = _state(optimizer)
        if not seen.has_scaled(optimizer):
            door.warn(_NOT_APPLIED)
            state = replace(state, scale=1.0)
        scaler = getattr(optimizer, "loss_scaler", optimizer)
        return ScaledUpdate(scaler=scaler, optimizer=optimizer, read_state=lambda: state, gradients=[*here, *elsewhere])
    except Exception as error:  # another version of DeepSpeed
        door.warn(f"steps of DeepSpeed's {type(optimizer).__name__} are seen through torch only: {error!r}")
        return None


def _has_loss_scale(optimizer: Any) -> bool:
    config = getattr(optimizer, "loss_scale_config", None)
    if config is not None:
        return bool(config.use_grad_scaling or optimizer.custom_loss_scaler)
    return getattr(optimizer, "dtype", None) == torch.float16 or bool(optimizer.custom_loss_scaler)


def _state(optimizer: Any) -> ScalerState:
    """Read the scaler's state from ZeRO's scaler, or from the fields in which the other two optimizers keep it."""
    holder = getattr(optimizer, "loss_scale_config", None) or optimizer.loss_scaler
    is_dynamic = bool(getattr(holder, "dynamic_loss_scale", getattr(holder, "dynamic", False)))
    is_dynamic = is_dynamic and not optimizer.custom_loss_scaler
    factor, shift = getattr(holder, "scale_factor", None), getattr(holder, "cur_hysteresis", None)
    lowest = getattr(holder, "min_loss_scale", getattr(holder, "min_scale", None))
    return ScalerState(
        kind="DynamicLossScaler" if is_dynamic else "LossScaler",
        scale=float(optimizer.loss_scale),
        is_dynamic=is_dynamic,
        growth_tracker=max(0, holder.cur_iter - holder.last_overflow_iter - 1) if is_dynamic else None,
        growth_interval=int(holder.scale_window) if is_dynamic else None,
        growth_factor=float(factor) if factor and is_dynamic else None,
        backoff_factor=1.0 / factor if factor and is_dynamic else None,
        min_scale=float(lowest) if lowest is not None else None,
        hysteresis=max(0, int(shift) - 1) if shift is not None else None,
    )


def _of_whole_parameters(optimizer: Any) -> Pairs:
    return [(p, p.grad) for group in optimizer.fp16_groups for p in group if p.grad is not None]


def _of_bf16(optimizer: Any) -> Pairs:
    groups = zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients, strict=True)
    return [(p, grad) for params, grads in groups for p, grad in zip(params, grads, strict=True) if grad is not None]


def _of_partitions(optimizer: Any) -> Pairs:
    """Return (parameter, this rank's part of its gradient) of those that this rank updates, in stages 1 and 2."""
    if optimizer.cpu_offload:
        return list(_of_offloaded_partitions(optimizer))
    pairs: Pairs = []
    for i, params in enumerate(optimizer.params_in_partition):
        parts = [t for t in optimizer.averaged_gradients.get(i) or () if not getattr(t, "_zero_padding", False)]
        pairs += zip(params, parts, strict=False)  # padding at the end has no mark in one of the layouts
    return pairs


def _of_offloaded_partitions(optimizer: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for params in optimizer.params_in_partition:
        for param in params:
            group, _, offset, n = optimizer.grad_position[optimizer.get_param_id(param)]
            buffer = optimizer.single_partition_of_fp32_groups[group].grad
            if buffer is not None:
                yield param, buffer.view(-1).narrow(0, int(offset), int(n))


def _of_shards(optimizer: Any) -> Pairs:
    """Return (parameter, this rank's part of its gradient) in stage 3, without the padding of the last rank."""
    parts = {id(p): t for i, ps in enumerate(optimizer.fp16_groups) for p, t in _averaged(optimizer, i, ps)}
    kept: dict[int, torch.Tensor] = getattr(optimizer, _KEPT, {})  # all there is when the optimizer is offloaded
    pairs: Pairs = []
    for param in (p for group in optimizer.fp16_groups for p in group):
        n, part = _n_here(optimizer, param), parts.get(id(param), kept.get(param.ds_id))
        if n > 0 and part is not None:
            pairs.append((param, part.view(-1)[:n]))
    return pairs


def _averaged(optimizer: Any, group: int, params: list[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(params, optimizer.averaged_gradients.get(group) or (), strict=False)


def _n_here(optimizer: Any, param: Any) -> int:
    """Return how many elements of a ZeRO-3 parameter there are from this rank's part on, without padding."""
    return param.ds_numel - param.partition_numel() * optimizer._get_param_partition_rank(param)
