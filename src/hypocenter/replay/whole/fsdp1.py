"""FSDP1: the parameters below one wrapper lie behind each other in a flat one, of which every rank holds an equal run.

Sources: `FlatParamHandle` in torch/distributed/fsdp/_flat_param.py and `_pre_forward` in _runtime_utils.py, torch 2.13;
those names are the same since 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from hypocenter.replay.whole.part import Part, StandIn, stand_in

_CLASS = "FullyShardedDataParallel"


def is_wrapper(module: torch.nn.Module) -> bool:
    """Return whether this is a wrapper of FSDP1."""
    return any(
        kind.__name__ == _CLASS and kind.__module__.startswith("torch.distributed.fsdp.")
        for kind in type(module).__mro__
    )


def is_sharded(root: torch.nn.Module) -> bool:
    """Return whether any module in it is wrapped by FSDP1."""
    return any(is_wrapper(module) for module in root.modules())


def why_not(root: torch.nn.Module) -> str:
    """Return why full tensors cannot stand for its parameters; "" if they can."""
    for handle in _handles(root.modules()):
        flat = handle.flat_param
        if not hasattr(flat, "_local_shard"):
            return "FSDP has not been called yet"
        if any(extension is not None for extension in flat._param_extensions):
            return "FSDP holds parameters that are sharded once more (DTensor)"
    return ""


def parts_of(modules: Iterable[torch.nn.Module]) -> list[Part]:
    """Return a part for each flat parameter, in the order of the modules, which is the same on all ranks."""
    return [_part_of(handle) for handle in _handles(modules)]


def plain_forwards(modules: Iterable[torch.nn.Module]) -> list[tuple[torch.nn.Module, Callable[..., Any]]]:
    """Return every wrapper with a forward that only casts its inputs as FSDP would, and calls what is inside."""
    return [(module, _plain_forward(module)) for module in modules if is_wrapper(module)]


def _handles(modules: Iterable[torch.nn.Module]) -> list[Any]:
    wrappers: list[Any] = [module for module in modules if is_wrapper(module)]
    return [wrapper._handle for wrapper in wrappers if wrapper._handle is not None]


def _part_of(handle: Any) -> Part:
    flat = handle.flat_param
    dtype = flat.dtype if handle._force_full_precision else handle._fwd_bwd_param_dtype or flat.dtype
    sharing: dict[tuple[int, str], list[tuple[torch.nn.Module, str]]] = {}
    for also in flat._shared_param_infos:
        sharing.setdefault((id(also.prim_module), also.prim_param_name), []).append((also.module, also.param_name))
    stand_ins: list[StandIn] = []
    originals = flat._params or [flat] * len(flat._shapes)  # with use_orig_params each has a flag of its own
    every = zip(_offsets(flat), flat._param_infos, flat._shapes, _strides(flat), originals, strict=True)
    for offset, (name, module, _), shape, stride, original in every:
        stand_ins.append(
            StandIn(
                tensor=stand_in(shape, dtype, handle.device, requires_grad=original.requires_grad, stride=stride),
                holders=[(module, name), *sharing.get((id(module), name), ())],
                offset=offset,
            )
        )
    is_whole = not handle.uses_sharded_strategy or handle.process_group.size() == 1

    def shard() -> torch.Tensor:
        return flat._local_shard.detach().flatten().to(dtype)

    return Part(
        shard=shard,
        group=None if is_whole else handle.process_group,
        stand_ins=stand_ins,
        covered=[flat, *(flat._params or ()), *(flat._shared_params or ())],
    )


def _offsets(flat: Any) -> list[int]:
    """Return the offset of each parameter's first element; between them there may be padding for alignment."""
    offsets: list[int] = []
    at = 0
    for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not is_padding:
            offsets.append(at)
        at += numel
    return offsets


def _strides(flat: Any) -> list[Any]:
    """Return the strides of parameters; None for contiguous ones, as all are before torch 2.3."""
    contiguous = getattr(flat, "_contiguities", None)
    if contiguous is None:
        return [None] * len(flat._shapes)
    return [None if is_plain else stride for is_plain, stride in zip(contiguous, flat._strides, strict=True)]


def _plain_forward(wrapper: Any) -> Callable[..., Any]:
    from torch.distributed.fsdp import _runtime_utils

    def forward(*args: Any, **kwargs: Any) -> Any:
        if wrapper._is_root:
            args, kwargs = _runtime_utils._root_cast_forward_input(wrapper, wrapper, args, kwargs)
        handle, precision = wrapper._handle, wrapper.mixed_precision
        if handle is not None and not handle._force_full_precision and precision.cast_forward_inputs:
            args, kwargs = _runtime_utils._cast_forward_inputs(precision.param_dtype, *args, **kwargs)
        return wrapper._fsdp_wrapped_module(*args, **kwargs)

    return forward
