"""Expectations of products and convolutions that are too large to be computed whole: some rows, samples, channels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from hypocenter.replay.effort import Effort
from hypocenter.replay.rows import Part, Products, Rows, as_rows, by_rows, chosen
from hypocenter.replay.triage.expected import Call, Expected, TooMuch, finished, of_rows
from hypocenter.replay.triage.products import convolved

CPU = torch.device("cpu")


def product(call: Call) -> list[Expected | None]:
    """Expect some rows of mm, bmm, addmm or baddbmm."""

    def error(rows: Rows, mass: torch.Tensor, result: int) -> torch.Tensor:
        inner = rows.b.shape[1] if isinstance(rows, Products) else 1
        return ((inner + 4) * call.u + 2 * call.u_product + 2 * call.u_out()) * mass + call.underflow(inner)

    return _judged(call, error)


def convolution(call: Call) -> list[Expected | None]:
    """Expect some samples of a convolution."""
    weight = call.tensor(1)
    return _of_convolution(call, math.prod(weight.shape[1:]) if not call.args[6] else weight.numel())


def convolution_backward(call: Call) -> list[Expected | None]:
    """Expect some samples of the input's gradient, some channels of those of weight and bias."""
    grad, weight = call.tensor(0), call.tensor(2)
    return _of_convolution(call, max(weight.numel(), grad.numel() // max(1, grad.shape[1])))


def _of_convolution(call: Call, n: int) -> list[Expected | None]:
    return _judged(call, lambda rows, mass, result: convolved(call, n) * mass + call.underflow(n))


def _judged(call: Call, error: Callable[[Rows, torch.Tensor, int], torch.Tensor]) -> list[Expected | None]:
    """Expect of each result the rows with elements that are not finite, then as many others as there is time for.

    Raises:
        TooMuch: even one of them takes too long, or more memory than there is.
    """
    found: list[Expected | None] = [None] * len(call.outputs)
    there = [i for i, dtype in enumerate(call.out_dtypes) if dtype is not None and call.outputs[i].numel()]
    for result in there:
        rows = by_rows(call.func, call.args, call.kwargs, call.outputs, result)
        if not isinstance(rows, Products | Part) or call.allowed is None:
            raise TooMuch
        share = replace(call.allowed, seconds=call.allowed.seconds / len(there))
        each = Effort(flops=2 * rows.of_one.flops, bytes=3 * rows.of_one.bytes)  # values and magnitudes
        if share.refuses(each):
            raise TooMuch
        flat = as_rows(call.outputs[result], rows)
        bad = (~torch.isfinite(flat).all(1)).nonzero()[:, 0]
        picked = chosen(bad, rows.n, max(1, int(share.flops / max(1.0, each.flops))), rows.n)
        value, mass = (r.done(picked, torch.float64, CPU) for r in (rows, rows.of_magnitudes()))
        done = finished(call, value, error(rows, mass, result), mass, index=result)
        found[result] = of_rows(done, picked, rows.n)
    return found
