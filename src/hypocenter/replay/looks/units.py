"""Activations of which a unit may be off for every input: ReLU, GELU, SiLU and their like, also written out.

A unit is off where less than 1.3 % of a gradient passes: below 0 of a ReLU, below -3 of a GELU, below -6 of a SiLU.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hypocenter.detect.health_rows import LOOKS, NAMED, UNITS
from hypocenter.replay.looking import Call, Found, Step, by_unit, look, looks_so_far, streak

_OFF = {"relu": 0.0, "gelu": -3.0, "silu": -6.0, "mish": -6.0, "hardswish": -3.0}  # at and below it
_GATE_OFF = {"sigmoid": 0.00247, "tanh": 0.00243}  # sigmoid(-6); 1 + tanh at x = -3 of the GELU that is written with it


@look("units")
def find(call: Call) -> Iterator[Found]:
    """Yield for each activation which units are on."""
    is_on = _is_on(call)
    if is_on is None or not call.of_module or is_on.dim() < 2:
        return
    values = call.outputs[0]
    dim = call.trace.unit_dim(_before(call) if values.shape == is_on.shape else values)
    on = by_unit(is_on, dim)
    silent = streak(call, UNITS, on.any(1))
    n_looks = looks_so_far(call, UNITS, on)
    dead = silent >= LOOKS
    order = torch.sort(dead.float(), descending=True, stable=True).indices[:NAMED].float()
    named = torch.where(torch.arange(len(order), device=on.device) < dead.sum(), order, -torch.ones_like(order))
    numbers = [
        torch.full((), float(on.shape[0]), device=on.device),
        (silent > 0).sum(),
        dead.sum(),
        n_looks,
        torch.full((), float(on.shape[1]), device=on.device),
        on.float().mean(),
    ]
    vector = torch.cat([torch.stack([n.float() for n in numbers]), named])
    yield Found(step=call.step, port=UNITS, values=vector, then=_without_padding)


def _without_padding(numbers: object) -> tuple[float, ...]:
    return tuple(n for n in numbers if n >= 0)  # type: ignore[attr-defined]


def _before(call: Call) -> Tensor:
    return call.given.get("self", call.outputs[0])


def _is_on(call: Call) -> Tensor | None:
    op = call.step.op.rstrip("_")
    x = call.given.get("self")
    if not isinstance(x, Tensor) or not call.outputs or not call.outputs[0].is_floating_point():
        return None
    if op == "relu":
        return call.outputs[0] > 0
    if op in _OFF:
        return x > _OFF[op]
    if op == "hardtanh" and call.given["min_val"] == 0:  # ReLU6
        return (x > 0) & (x < call.given["max_val"])
    if op == "mul":
        return _gated_by_itself(call)
    return None


def _gated_by_itself(call: Call) -> Tensor | None:
    """Return where x · sigmoid(a x), or x · (1 + tanh(...)), is on: SiLU and GELU as models write them; else None."""
    trace, one, other = call.trace, call.given["self"], call.given["other"]
    for gate, x in ((one, other), (other, one)):
        step, made = trace.made(gate), trace.made(x)
        if step is None or made is None or not isinstance(x, Tensor) or x.shape != gate.shape:
            continue
        kind = next((s for s in (step, *_single(call, step, "add")) if s.op.rstrip("_") in _GATE_OFF), None)
        if kind is None or (kind.op.rstrip("_") == "tanh") != (kind is not step):
            continue
        roots = {s.index for s in _near(call, made)}
        if roots & {s.index for s in _near(call, kind)} - {kind.index}:
            kind.is_named = True
            return gate > _GATE_OFF[kind.op.rstrip("_")]
    return None


def _single(call: Call, step: Step, op: str) -> Iterator[Step]:
    """Yield what made the input of this operator, if it acts on one tensor and a number."""
    if step.op.rstrip("_") == op:
        known = [s for s in call.trace.before(step) if s.op != "lift_fresh"]
        yield from known if len(known) == 1 else ()


def _near(call: Call, step: Step) -> Iterator[Step]:
    """Yield the step, and those it was made of by element-wise arithmetic."""
    waiting, seen = [step], set[int]()
    while waiting and len(seen) < 12:
        step = waiting.pop()
        if step.index in seen:
            continue
        seen.add(step.index)
        yield step
        if step.op.rstrip("_") in ("mul", "add", "pow", "div", "_to_copy", "sigmoid", "tanh"):
            waiting += call.trace.before(step)
