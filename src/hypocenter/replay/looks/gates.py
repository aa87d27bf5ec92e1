"""Gates and choices that no longer let a gradient through: sigmoid, tanh, and softmax outside of attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hypocenter.detect.health_rows import CHOICES, GATES, LOOKS
from hypocenter.replay.looking import Call, Found, by_unit, look, looks_so_far, streak

_ALL = 0.999  # of a softmax


@look("gates")
def find(call: Call) -> Iterator[Found]:
    """Yield for each gate the share of its elements whose derivative is below 1 % of the largest."""
    op = call.step.op.rstrip("_")
    y = call.outputs[0]

    def is_gate() -> bool:
        return not call.step.is_named and call.step.index in call.trace.used

    if not call.of_module or y.dim() < 2 or not y.is_floating_point():
        return
    if op in ("_softmax", "_safe_softmax"):
        share = (y.amax(call.given["dim"]) > _ALL).float()
        numbers = torch.stack([torch.full((), float(share.numel()), device=y.device), share.mean()])
        product = call.trace.product_behind(call.given["self"])

        def is_meant() -> bool:
            return is_gate() and (product is None or product.index not in call.trace.routed)

        yield Found(step=call.step, port=CHOICES, values=numbers, is_meant=is_meant)
    elif (saturated := _saturated(op, y)) is not None:
        units = by_unit(saturated, call.trace.unit_dim(call.given["self"]))
        stuck = streak(call, GATES, ~units.all(1)) >= LOOKS
        n = torch.full((), float(units.shape[0]), device=y.device)
        numbers = torch.stack([n, units.float().mean(), stuck.sum().float(), looks_so_far(call, GATES, y)])
        yield Found(step=call.step, port=GATES, values=numbers, is_meant=is_gate)


def _saturated(op: str, y: Tensor) -> Tensor | None:
    if op in ("sigmoid", "hardsigmoid"):
        return y * (1 - y) < 0.0025
    return y.square() > 0.99 if op == "tanh" else None
