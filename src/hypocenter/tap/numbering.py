"""Layers that carry a number: a pipeline stage counts its list from 0, the model counts through all stages.

Megatron-Core gives each transformer layer `layer_number`, from 1 over all stages (and over the chunks of an interleaved
schedule), while its list on each stage starts at 0: `decoder.layers.0` of stage 1 is the model's `decoder.layers.6`.
"""

from __future__ import annotations

import torch
from torch import nn


def layer_number(module: nn.Module) -> int | None:
    """Return the number that a module itself carries; None for none."""
    number = module.__dict__.get("layer_number")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def offset_of(container: nn.Module) -> int:
    """Return what turns the places in a list of layers into their places in the model; 0 for anything else.

    All members must carry numbers, those numbers must rise as the places do, and there must be other ranks: without
    them nothing is elsewhere, and a number that differs from the place means something else.
    """
    offsets: set[int] = set()
    for key, child in container._modules.items():
        number = layer_number(child) if child is not None and key.isdecimal() else None
        if number is None:
            return 0
        offsets.add(number - 1 - int(key))
    offset = offsets.pop() if len(offsets) == 1 else 0
    return offset if offset > 0 and is_one_of_many() else 0


def has_numbered_layers(module: nn.Module) -> bool:
    """Return whether there is a list of numbered layers somewhere in the module."""
    return any(layer_number(part) is not None for part in module.modules())


def is_one_of_many() -> bool:
    """Return whether there are other ranks to wait for."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
