"""Expectations of fused attention and of its gradients, by blocks of rows: of large ones some rows are judged.

Those with an element that is not finite come first, then some of the others.
"""

from __future__ import annotations

import torch

from hypocenter.replay.attention import Attention
from hypocenter.replay.attention_backward import KEYS, QUERIES, VALUES, AttentionBackward, Tile
from hypocenter.replay.rows import chosen
from hypocenter.replay.triage import expected
from hypocenter.replay.triage.expected import Call, Expected, finished, of_rows


def attention(call: Call) -> list[Expected | None]:
    """Expect Σ softmax(q·k) · v: errors of the scores enter through the exponential."""
    whole, out = Attention.of(call.func, call.args, call.kwargs), call.outputs[0]
    if whole is None or whole.is_random or out.shape != (*whole.q.shape[:3], whole.v.shape[3]):
        raise NotImplementedError("attention with dropout draws random numbers, or arguments are not known")
    flat = out.reshape(whole.n_rows, -1)
    bad = (~torch.isfinite(flat).all(1)).nonzero()[:, 0]
    rows = chosen(bad, whole.n_rows, max(1, int(expected.MOST_PRODUCTS / (whole.flops_of_row))), whole.n_rows)
    u_score = (whole.q.shape[-1] + 32) * call.u + 2 * call.u_product
    u_share = (2 * whole.k.shape[2] + 256) * call.u + 4 * max(call.u_out(), call.u) + 2 * call.u_product
    lost = 1e-30 + call.underflow(whole.k.shape[2])
    found = torch.empty(4, len(rows), whole.v.shape[3], dtype=torch.float64, device="cpu")
    for at, block in whole.blocks(rows, torch.float64, torch.device("cpu")):
        sizes = (block.q.abs() @ block.k.abs().mT).amax(-1, keepdim=True) * abs(whole.scale)
        shares, magnitudes = block.scores.softmax(-1), block.v.abs()
        mass, largest = shares @ magnitudes, magnitudes.amax(0)
        wrong = u_score * sizes
        error = (4 * wrong + u_share) * mass
        # exp(2 · 0.5) - 1 < 4 · 0.5; beyond it any share may be any other
        error = torch.where(wrong < 0.5, error, largest)
        inner = magnitudes.sum(0) + sizes * max(1.0, 1.0 / max(abs(whole.scale), 1e-30))
        for kept, values in zip(found, (shares @ block.v, error + lost * largest, mass, inner), strict=True):
            kept[at] = values  # lost: of shares that vanish
    is_whole = len(rows) == whole.n_rows
    value, error, mass, inner = (kept.reshape(out.shape) if is_whole else kept for kept in found)
    done = finished(call, value, error, mass, inner=inner)
    done = done if is_whole else of_rows(done, rows, whole.n_rows)
    return [done, *[None] * (len(call.out_dtypes) - 1)]


def attention_backward(call: Call) -> list[Expected | None]:
    """Expect gradients of queries, keys and values: errors of the weights and their gradients go through a product."""
    whole = AttentionBackward.of(call.func, call.args, call.kwargs)
    if whole is None or whole.forward.is_random:
        raise NotImplementedError("attention with dropout draws random numbers, or arguments are not known")
    found: list[Expected | None] = [None] * len(call.outputs)
    for result in (QUERIES, KEYS, VALUES):
        out, n = call.outputs[result], whole.n_rows(result)
        if call.out_dtypes[result] is None or not out.numel():
            continue
        flat = out.reshape(n, -1)
        bad = (~torch.isfinite(flat).all(1)).nonzero()[:, 0]
        most = int(expected.MOST_PRODUCTS / (3 * whole.flops_of_row(result)))  # values, magnitudes and errors
        rows = chosen(bad, n, max(1, most), n)
        kept = torch.zeros(4, len(rows), flat.shape[1], dtype=torch.float64, device="cpu")
        for tile in whole.tiles(result, rows, torch.float64, torch.device("cpu")):
            kept[:, tile.at] += _of_tile(call, tile, result, whole.forward.scale)
        value, error, mass, inner = kept
        error += call.underflow(whole.across(result))
        found[result] = of_rows(finished(call, value, error, mass, index=result, inner=inner), rows, n)
    return found


def _of_tile(call: Call, tile: Tile, result: int, scale: float) -> torch.Tensor:
    """Return value, error, mass and inner mass that a tile adds to the rows of a result."""
    head, shares, hidden = tile.head, tile.shares, torch.isneginf(tile.head.scores)
    narrow = max(call.u_out(), call.u)  # shares and their gradients may be stored in the 16-bit format
    vanished = 2.0**-24 if torch.float16 in call.dtypes else 1e-30
    sizes = head.q.abs() @ head.k.abs().mT * abs(scale)
    wrong = ((head.q.shape[1] + 32) * call.u + 2 * call.u_product) * sizes
    wrong += 2 * call.u * (head.scores.masked_fill(hidden, 0.0).abs() + tile.lse.abs())
    off = shares * (torch.expm1(2 * wrong) + 256 * call.u + 4 * narrow + 2 * call.u_product) + vanished
    across = shares.shape[1 if result == QUERIES else 0]
    of_product = (across + 8) * call.u + 2 * call.u_product
    inner = sizes
    if result == VALUES:
        mass, error, factor, worst = shares, off, tile.grad, shares
    else:
        terms = tile.grad.abs() @ head.v.abs().mT + (tile.grad * tile.out).abs().sum(-1, keepdim=True)
        width = (tile.grad.shape[1] + 32) * call.u + 2 * call.u_product + 4 * narrow
        mass, factor = abs(scale) * shares * terms, head.k if result == QUERIES else head.q
        error = abs(scale) * ((off + shares * width) * terms + vanished)
        worst, inner = shares * terms, sizes + terms
    if result != QUERIES:
        mass, error, worst, inner = mass.mT, error.mT, worst.mT, inner.mT
    masses = mass @ factor.abs()
    return torch.stack(
        [
            tile.gradient(result, scale),
            error @ factor.abs() + of_product * masses,
            masses + worst.amax(1, keepdim=True),
            masses + inner.amax(1, keepdim=True),
        ]
    )
