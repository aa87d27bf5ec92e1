"""DeepSpeed's ZeRO stage 3: each parameter is empty between uses, and every rank holds an equal run of its elements.

The last rank's run is padded. Sources: `Init._partition_param` and `Init._all_gather_dtype` of deepspeed 0.19,
`runtime/zero/partition_parameters.py`; the hooks are those of `runtime/zero/parameter_offload.py` and of the engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hypocenter.replay.whole.part import Part, StandIn, stand_in

_HOOKS_OF = "deepspeed"


def is_sharded(root: torch.nn.Module) -> bool:
    """Return whether any of its parameters is sharded by ZeRO stage 3."""
    return any(hasattr(parameter, "ds_tensor") for parameter in root.parameters())


def why_not(root: torch.nn.Module) -> str:
    """Return why full tensors cannot stand for its parameters; "" if they can."""
    quantized: Any = getattr(root, "zero_quantized_weights", None)
    if callable(quantized) and quantized():
        return "its weights are quantized when they are gathered (ZeRO++)"
    if getattr(root, "zenflow", False):
        return "its weights are kept transposed (ZenFlow)"
    for parameter in root.parameters():
        part: Any = getattr(parameter, "ds_tensor", None)
        if part is None:
            continue
        if hasattr(part, "ds_quant_scale"):
            return "its frozen weights are kept quantized"
        if part.status.name != "AVAILABLE":
            return "its parameters are on disk (NVMe offload)"
    return ""


def parts_of(modules: Iterable[torch.nn.Module]) -> list[Part]:
    """Return a part for each parameter, in the order of the modules, which is the same on all ranks."""
    known: dict[int, Part] = {}
    for module in modules:
        for key, parameter in module._parameters.items():
            if parameter is None or not hasattr(parameter, "ds_tensor"):
                continue
            part = known.get(id(parameter)) or known.setdefault(id(parameter), _part_of(parameter))
            part.stand_ins[0].holders.append((module, key))
    return list(known.values())


def is_hook(hook: Callable[..., Any]) -> bool:
    """Return whether a hook on a module gathers or lets go of parameters, or keeps the engine's books."""
    return getattr(inspect.unwrap(hook), "__module__", "").partition(".")[0] == _HOOKS_OF


def _part_of(parameter: Any) -> Part:
    tensor = stand_in(parameter.ds_shape, parameter.dtype, parameter.device, requires_grad=parameter.requires_grad)
    for hook in (parameter._backward_hooks or {}).values():  # the user's; DeepSpeed's hang on the accumulation
        tensor.register_hook(hook)
    travels_as = getattr(parameter, "comm_dtype", parameter.dtype)  # under DeepSpeed's own autocast

    def shard() -> torch.Tensor:
        return parameter.ds_tensor.detach().to(travels_as).to(parameter.dtype)

    group = parameter.ds_process_group
    return Part(
        shard=shard,
        group=group if group.size() > 1 else None,
        stand_ins=[StandIn(tensor=tensor, holders=[], original=parameter)],
        covered=[parameter],
    )
