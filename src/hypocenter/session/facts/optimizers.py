"""An optimizer as it is at an update: class, options of each group, names of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hypocenter.record.facts_file import GroupFacts, OptimizerFacts
from hypocenter.session.facts.plain import NOT_PLAIN, members, plain
from hypocenter.tap.flat_parameters import is_flat, originals
from hypocenter.tap.names import NameMap

_MODEL_GROUPS = ("bit16_groups", "fp16_groups")  # DeepSpeed: the model's own parameters, group by group
_MASTER = "main_param"  # Megatron-Core: on the model's parameter, the float32 copy that is trained


def optimizer_facts(optimizer: Any, names: NameMap) -> OptimizerFacts:
    """Of a torch optimizer or what wraps one (`param_groups`); parameters outside all models get their place."""
    groups: Sequence[Any] = getattr(optimizer, "param_groups", None) or ()
    owned = _model_groups(optimizer, len(groups))
    masters = {id(m): p for _, p in names.parameters() if isinstance(m := members(p).get(_MASTER), Tensor)}
    return OptimizerFacts(
        kind=_kind(optimizer),
        groups=tuple(
            GroupFacts(
                options=_options(group),
                parameters=tuple(_names(owned[i] if owned else group.get("params", ()), i, names, masters)),
            )
            for i, group in enumerate(groups)
            if isinstance(group, Mapping)
        ),
    )


def _kind(optimizer: Any) -> str:
    """The class of the innermost torch optimizer: which rule trains. A wrapper's, when there is none inside."""
    inner, n_layers = optimizer, 0
    while not isinstance(inner, torch.optim.Optimizer) or "optimizer" in members(inner):
        below = members(inner).get("optimizer")
        if below is None or n_layers > 8:  # a wrapper that wraps itself would be an endless loop
            break
        inner, n_layers = below, n_layers + 1
    return type(inner if isinstance(inner, torch.optim.Optimizer) else optimizer).__name__


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    kept = {str(key): plain(value) for key, value in group.items() if key != "params" and type(key) is str}
    return {key: value for key, value in kept.items() if value is not NOT_PLAIN}


def _model_groups(optimizer: Any, n_groups: int) -> Sequence[Any]:
    for key in _MODEL_GROUPS:
        found = members(optimizer).get(key)
        if isinstance(found, (list, tuple)) and len(found) == n_groups:
            return found
    return ()


def _names(parameters: Any, group: int, names: NameMap, masters: Mapping[int, Tensor]) -> Iterator[str]:
    for index, parameter in enumerate(parameters):
        thing = masters.get(id(parameter), parameter)
        for each in [o for _, o in originals(thing)] if is_flat(thing) else [thing]:
            found = names.param_names(each)
            yield found[0] if found else f"param_groups[{group}].params[{index}]"
