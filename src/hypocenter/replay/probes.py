"""Measurements on the captured operands of a blamed op: what the causes need beyond summaries."""

from __future__ import annotations

import torch

from hypocenter.replay.adjudicate import bad_mask, bad_output
from hypocenter.tap.tracer import Node, OpTracer


def upstream_grad_zero(node: Node) -> bool | None:
    """Whether the gradient that came into a blamed backward op was exactly 0 at every bad element; None: no answer."""
    output = bad_output(node)
    if node.place.phase != "backward" or output is None or not node.args:
        return None
    incoming = node.args[0]
    if not isinstance(incoming, torch.Tensor) or not incoming.is_floating_point():
        return None
    try:
        incoming = incoming.expand_as(output)
    except RuntimeError:
        return None
    return bool((incoming[bad_mask(output, node)] == 0).all())


def facts(node: Node, tracer: OpTracer) -> dict[str, float | str]:
    """Named numbers: zeros and negatives among the operands, masked rows, valid labels, the clamp that fed a log."""
    found: dict[str, float | str] = {}
    if not node.args:
        return found
    base = node.traced.op.split(".")[1].rstrip("_")
    operands = [value for value in node.args if isinstance(value, torch.Tensor)]
    floating = [t for t in operands if t.is_floating_point()]
    if floating:
        first = floating[0]
        found["n_zero_inputs"] = float((first == 0).sum())
        found["n_negative_inputs"] = float((first < 0).sum())
    if base in ("div", "reciprocal", "rsqrt", "true_divide") and floating:
        found["n_zero_denominators"] = float((floating[-1] == 0).sum())
    if "softmax" in base and floating:
        dim = next((value for value in node.args if isinstance(value, int) and not isinstance(value, bool)), -1)
        masked = torch.isneginf(floating[0]).all(dim=dim)
        found["n_masked_rows"] = float(masked.sum())
        if bool(masked.any()):
            found["first_masked_row"] = str(masked.nonzero()[0].tolist())
    if base.startswith("nll_loss") and len(node.args) >= 5 and isinstance(node.args[1], torch.Tensor):
        found["n_valid_labels"] = float((node.args[1] != node.args[4]).sum())
        found["ignore_index"] = float(node.args[4])
    if base in ("mean", "std", "var") and floating:
        found["n_elements"] = float(floating[0].numel())
    if base.startswith("log") or base in ("div", "reciprocal", "pow"):
        found.update(_clamp_upstream(node, tracer))
    return found


def _clamp_upstream(node: Node, tracer: OpTracer) -> dict[str, float | str]:
    """A clamp at most four ops upstream, with its bounds and what they round to in the tensor's format."""
    frontier = [edge.producer for edge in node.traced.inputs]
    for _ in range(4):
        reached: list[int] = []
        for producer in frontier:
            if producer < 0:
                continue
            upstream = tracer.nodes[producer]
            if upstream.traced.op.startswith("aten.clamp") and upstream.scalars:
                bound = float(upstream.scalars[-1])
                dtype = getattr(torch, upstream.dtypes[0])
                return {
                    "clamp_bound": bound,
                    "clamp_bound_rounded": float(torch.tensor(bound, dtype=dtype)),
                    "clamp_dtype": upstream.dtypes[0],
                    "clamp_eps": float(torch.finfo(dtype).eps),
                }
            reached.extend(edge.producer for edge in upstream.traced.inputs)
        frontier = reached
    return {}
