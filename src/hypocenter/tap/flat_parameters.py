"""FSDP1's flat parameters (`use_orig_params=False`): one long tensor in place of a module's parameters, cut up again.

A rank holds a part of the flat tensor, so of an original parameter it holds a run of elements, or none. What stands for
an original parameter here is a tensor without values, which has its shape and its name (NameMap knows it).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

_originals: Any = WeakIdKeyDictionary()


def is_flat(parameter: torch.Tensor) -> bool:
    """Return whether a parameter holds several of the user's parameters."""
    return getattr(parameter, "_is_flat_param", False) and getattr(parameter, "_params", None) is None


def originals(flat: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return (name below the wrapped module, what stands for it) of each parameter in a flat one; always the same."""
    known: list[tuple[str, torch.Tensor]] | None = _originals.get(flat)
    if known is None:
        facts: Any = flat
        known = [
            (str(name), torch.empty(shape, dtype=flat.dtype, device="meta"))
            for name, shape in zip(facts._fqns, facts._shapes, strict=True)
        ]
        _originals[flat] = known
    return known


def cut(flat: torch.Tensor, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Cut values laid out as this rank's part of a flat parameter into (original parameter, its elements here).

    Args:
        values: one-dimensional; of another length than the part it is given back whole, as the flat parameter's.
    """
    facts: Any = flat
    runs = [run for run in getattr(facts, "_shard_param_infos", ()) if run.in_shard]
    ends = [run.offset_in_shard + run.numel_in_shard for run in runs]
    if values.dim() != 1 or not runs or values.numel() < max(ends):
        return [(flat, values)]
    every = zip(originals(flat), facts._shard_param_infos, strict=True)
    return [
        (original, values[run.offset_in_shard : run.offset_in_shard + run.numel_in_shard])
        for (_, original), run in every
        if run.in_shard
    ]


def unfolded(parameter: torch.Tensor, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Cut the values of a flat parameter, as `cut` does; return those of any other one as they are."""
    return cut(parameter, values) if is_flat(parameter) else [(parameter, values)]
