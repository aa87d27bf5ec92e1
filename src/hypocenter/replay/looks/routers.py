"""Routers: a choice of the largest of E scores that a parameter with E outputs makes, if the loss depends on it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hypocenter.detect.health_rows import LOAD, LOOKS, ROUTER
from hypocenter.replay.looking import Call, Found, look, looks_so_far, streak

_MOST = 4096  # experts
_CHOICES = {"topk": 1, "max": 1, "argmax": 0}  # operator -> which of its results holds the indices


@look("routers")
def find(call: Call) -> Iterator[Found]:
    """Yield for each router the load of its experts, and how sure it is."""
    op, scores = call.step.op, call.given.get("self")
    if op not in _CHOICES or not call.of_module or not isinstance(scores, Tensor) or scores.dim() < 2:
        return
    indices, n = call.outputs[-1], scores.shape[-1]
    is_last = call.given.get("dim") in (-1, scores.dim() - 1)
    product = call.trace.product_behind(scores)
    if not is_last or len(call.outputs) <= _CHOICES[op] or indices.is_floating_point():
        return
    if product is None or product.features != n or not 2 <= n <= _MOST:
        return
    if product.index in call.trace.routed:
        return  # chosen from again: for its index, or for a loss that balances the load
    call.trace.routed.add(product.index)
    probabilities = _probabilities(call, scores).reshape(-1, n)
    chosen = indices.reshape(probabilities.shape[0], -1)
    ones = torch.ones(chosen.numel(), device=scores.device)
    counts = torch.zeros(n, device=scores.device).scatter_add_(0, chosen.reshape(-1), ones)
    load, mean = counts / counts.sum(), probabilities.mean(0)
    ranked = probabilities.sort(-1, descending=True).values
    k = chosen.shape[1]
    margin = (ranked[:, k - 1] - ranked[:, k]).mean() if k < n else torch.ones((), device=scores.device)
    entropy = torch.special.entr(probabilities).sum(-1).mean() / math.log(n)
    nothing = streak(call, ROUTER, counts > 0) >= LOOKS
    sizes = torch.tensor([n, k, chosen.shape[0]], device=scores.device)
    numbers = [*sizes, entropy, margin, n * (load * mean).sum(), nothing.sum(), looks_so_far(call, ROUTER, load)]

    def is_meant() -> bool:
        return call.step.index in call.trace.used

    for port, values in ((LOAD, load), (ROUTER, torch.stack([one.float().to(load.device) for one in numbers]))):
        yield Found(step=call.step, port=port, values=values, is_meant=is_meant)


def _probabilities(call: Call, scores: Tensor) -> Tensor:
    """Return the scores of a router as shares of one."""
    softmax, sigmoid = call.trace.descends(scores, "_softmax"), call.trace.descends(scores, "sigmoid")
    for gate in (softmax, sigmoid):
        if gate is not None:
            gate.is_named = True
    values = scores.float()
    if softmax is not None or sigmoid is not None:
        values = values.clamp_min(0)
        return values / values.sum(-1, keepdim=True).clamp_min(1e-30)
    return values.softmax(-1)
