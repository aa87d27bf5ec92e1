"""Parameters, their gradients and the optimizer's state, summarised on a schedule.

The site is the parameter's name; the ports are `value`, `grad`, and the optimizer's own words (`exp_avg`, `step`, ...).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from hypocenter.config import Config
from hypocenter.nouns import Phase, Reading
from hypocenter.tap.clock import Clock
from hypocenter.tap.flat_parameters import is_flat, unfolded
from hypocenter.tap.names import NameMap, class_name
from hypocenter.tap.reducer import Reducer
from hypocenter.tap.spread.parameters import SpreadOfParameters
from hypocenter.tap.spread.where import Where
from hypocenter.tap.tree import flatten
from hypocenter.tap.wanted import is_wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    phase: Phase
    names: tuple[str, ...]
    port: str
    tensor: Tensor
    owner: str = ""
    parameter: Tensor | None = None  # that it belongs to


def parameter_readings(
    names: NameMap, optimizers: Sequence[Any], reducer: Reducer, step: int, *, clock: Clock, config: Config,
    spread: SpreadOfParameters | None = None,
) -> list[Reading]:  # fmt: skip
    """Summarise everything that the optimizers are about to use; call it just before they do.

    Args:
        optimizers: torch optimizers or what quacks like one (`param_groups`, `state`); parameters that are in none of
            them are read too, without state.
        reducer: one that nobody else has tickets of.
        spread: says how they lie over the ranks.
    """
    with torch.no_grad():
        wanted = [value for value in _values(names, optimizers) if is_wanted(value.names, config)]
        where = _wheres(wanted, spread, optimizers[0] if optimizers else None)
        tickets = [
            reducer.add(value.tensor) if at is None else reducer.add(value.tensor, at)
            for value, at in zip(wanted, where, strict=True)
        ]
        summaries = reducer.drain()
    return [
        Reading(
            step=step,
            microbatch=max(0, clock.microbatch - 1),
            phase=value.phase,
            site=value.names[0],
            port=value.port,
            order=clock.next_order(),
            dtype=str(value.tensor.dtype).removeprefix("torch."),
            shape=tuple(value.tensor.shape),
            summary=summaries[ticket],
            module=value.owner,
            names=value.names if len(value.names) > 1 else (),
            placement=at.placement if at is not None else "",
        )
        for value, ticket, at in zip(wanted, tickets, where, strict=True)
        if ticket is not None
    ]


def _wheres(values: Sequence[_Value], spread: SpreadOfParameters | None, optimizer: Any) -> list[Where | None]:
    if spread is None or not spread.is_on:
        return [None] * len(values)
    placements = spread.placements()
    return [
        spread.of(placements, value.names[0], value.parameter, value.tensor, value.phase, optimizer)
        if value.parameter is not None
        else None
        for value in values
    ]


def _values(names: NameMap, optimizers: Sequence[Any]) -> Iterator[_Value]:
    owners = _owner_classes(names)
    states: dict[int, list[Mapping[str, Any]]] = {}
    params: dict[int, tuple[tuple[str, ...], Tensor]] = {
        id(param): (names.param_names(param), param) for _, param in names.parameters()
    }
    for optimizer in optimizers:
        for i, group in enumerate(getattr(optimizer, "param_groups", ())):
            for j, param in enumerate(group["params"]):
                params.setdefault(id(param), ((f"param_groups[{i}].params[{j}]",), param))
                states.setdefault(id(param), []).append(_state_of(optimizer, param))
    for key, (all_names, param) in params.items():
        for value in _of_one(all_names, param, states.get(key, []), owners.get(key, "")):
            yield from _unfolded(names, param, replace(value, parameter=param))


def _unfolded(names: NameMap, param: Tensor, value: _Value) -> Iterator[_Value]:
    """Yield the user's parameters in a flat parameter of FSDP1; any other one as it is."""
    parts = unfolded(param, value.tensor) if is_flat(param) else []
    if not parts or parts[0][0] is param:
        yield value
        return
    for original, part in parts:
        yield replace(value, names=names.param_names(original), tensor=part, owner="", parameter=original)


def _of_one(names: tuple[str, ...], param: Tensor, states: Sequence[Mapping[str, Any]], owner: str) -> Iterator[_Value]:
    if not hasattr(param, "ds_shape"):  # DeepSpeed ZeRO-3 keeps its parameters empty between uses
        yield _Value(phase="param", names=names, port="value", tensor=param, owner=owner)
    grad = param.grad if param.grad is not None else getattr(param, "main_grad", None)  # Megatron-Core's
    if isinstance(grad, Tensor):
        yield _Value(phase="grad", names=names, port="grad", tensor=grad, owner=owner)
    for state in states:
        for key, value in state.items():
            for port, tensor in flatten(value, str(key)):
                yield _Value(phase="optimizer", names=names, port=port, tensor=tensor, owner=owner)


def _state_of(optimizer: Any, param: Tensor) -> Mapping[str, Any]:
    state = getattr(optimizer, "state", None)
    # .get, for a torch optimizer's state is a defaultdict: asking it with [] would change the user's optimizer
    found = cast("Mapping[Any, Any]", state).get(param) if isinstance(state, Mapping) else None
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _owner_classes(names: NameMap) -> dict[int, str]:
    return {
        id(param): class_name(module)
        for root in names.roots()
        for module in root.modules()
        for param in module._parameters.values()
        if param is not None
    }
