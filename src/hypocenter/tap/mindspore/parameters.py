"""Parameters, their gradients and the optimizer's state, summarised on a schedule.

The site is the parameter's path in the model; the ports are `value`, `grad`, and torch's words for the state
(`exp_avg`, `step`, ...).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.config import Config
from hypocenter.nouns import Phase, Reading
from hypocenter.tap.clock import Clock
from hypocenter.tap.mindspore.names import NameMap, own_parameters
from hypocenter.tap.mindspore.optimizers import members, state_of
from hypocenter.tap.mindspore.reducer import Reducer
from hypocenter.tap.wanted import is_wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    phase: Phase
    names: tuple[str, ...]
    port: str
    tensor: Any
    owner: str


def parameter_readings(
    names: NameMap, optimizer: Any, gradients: Sequence[tuple[Any, Any]], reducer: Reducer, step: int, *, clock: Clock,
    config: Config,
) -> list[Reading]:  # fmt: skip
    """Summarise everything that an optimizer is about to use; call it just before it does.

    Args:
        optimizer: None when the step is skipped.
        gradients: (parameter, gradient) as the optimizer gets them; () when the step is skipped.
        reducer: one that nobody else has tickets of.
    """
    wanted = [value for value in _values(names, optimizer, gradients) if is_wanted(value.names, config)]
    tickets = [reducer.add(value.tensor) for value in wanted]
    summaries = reducer.drain()
    return [
        Reading(
            step=step,
            microbatch=max(0, clock.microbatch - 1),
            phase=value.phase,
            site=value.names[0],
            port=value.port,
            order=clock.next_order(),
            dtype=str(value.tensor.dtype).lower(),
            shape=tuple(value.tensor.shape),
            summary=summaries[ticket],
            module=value.owner,
            names=value.names if len(value.names) > 1 else (),
        )
        for value, ticket in zip(wanted, tickets, strict=True)
    ]


def _values(names: NameMap, optimizer: Any, gradients: Sequence[tuple[Any, Any]]) -> Iterator[_Value]:
    owners = {
        id(parameter): type(cell).__name__
        for _, cell in names.cells()
        for parameter in own_parameters(cell).values()
        if parameter is not None
    }
    of_gradient = {id(parameter): gradient for parameter, gradient in gradients}
    states = state_of(optimizer) if optimizer is not None else {}
    known = {id(parameter): parameter for _, parameter in names.parameters()}
    known.update({id(parameter): parameter for parameter in (members(optimizer) if optimizer is not None else ())})
    for key, parameter in known.items():
        all_names, owner = names.param_names(parameter) or (names.label(parameter),), owners.get(key, "")
        yield _Value(phase="param", names=all_names, port="value", tensor=parameter, owner=owner)
        if of_gradient.get(key) is not None:
            yield _Value(phase="grad", names=all_names, port="grad", tensor=of_gradient[key], owner=owner)
        for port, tensor in states.get(key, ()):
            yield _Value(phase="optimizer", names=all_names, port=port, tensor=tensor, owner=owner)
