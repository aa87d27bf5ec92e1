"""Layer numbers that modules carry (Megatron's `layer_number`, from 1 over all pipeline stages)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hypocenter.tap.numbering import layer_number

AT_MOST = 4096  # of one model: rank.json is read as a whole


def layer_numbers(named: Iterable[tuple[str, torch.nn.Module]]) -> dict[str, int]:
    """Module path -> the number that the module itself carries, of numbered lists' members only.

    A layer hands its number on to its parts (`self_attention.layer_number`): they would say nothing new.
    """
    found: dict[str, int] = {}
    for name, module in named:
        number = layer_number(module)
        if number is not None and name.rpartition(".")[2].isdecimal() and len(found) < AT_MOST:
            found[name] = number
    return found
