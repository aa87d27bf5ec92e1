"""Measurements on the captured operands of a blamed operator: what the causes need beyond summaries."""

from __future__ import annotations

from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np

from hypocenter.operator_names import canonical
from hypocenter.replay.mindspore.adjudicate import bad_mask, bad_output, operands
from hypocenter.replay.mindspore.host import flat, is_floating, values
from hypocenter.replay.mindspore.trace import VIEWS, Node, OpTracer

_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}  # IEEE 754; Intel 338302
_UPSTREAM = 4  # operators between a clamp and the logarithm it protects


def upstream_grad_zero(node: Node) -> bool | None:
    """Whether the gradient that came into a blamed backward op was exactly 0 at every bad element; None: no answer."""
    output = bad_output(node)
    if node.place.phase != "backward" or output is None or not node.args or node.upstream is None:
        return None
    incoming = list(flat(operands(node)))[node.upstream]
    mask = bad_mask(output.array)
    try:
        return bool((np.broadcast_to(values(incoming), mask.shape)[mask] == 0).all())
    except ValueError:
        return None


def facts(node: Node, tracer: OpTracer) -> dict[str, float | str]:
    """Named numbers: zeros and negatives among the operands, masked rows, the clamp that fed a log."""
    found: dict[str, float | str] = {}
    base = canonical(node.traced.op)
    floating = [values(t) for t in flat(operands(node)) if is_floating(t)]
    if not floating:
        return found
    found["n_zero_inputs"] = float((floating[0] == 0).sum())
    found["n_negative_inputs"] = float((floating[0] < 0).sum())
    if base in ("div", "reciprocal", "rsqrt"):
        found["n_zero_denominators"] = float((floating[-1] == 0).sum())
    if "softmax" in base:
        axis = next((_axis(v) for v in operands(node) if _axis(v) is not None), -1)
        masked = (floating[0] == -np.inf).all(axis=axis)
        found["n_masked_rows"] = float(masked.sum())
        if masked.any():
            found["first_masked_row"] = str([int(i) for i in np.argwhere(masked)[0]])
    if base in ("mean", "std", "var"):
        found["n_elements"] = float(floating[0].size)
    if base.startswith("log") or base in ("div", "reciprocal", "pow"):
        found.update(_clamp_upstream(node, tracer))
    return found


def _axis(value: Any) -> int | None:
    if isinstance(value, (tuple, list)) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _clamp_upstream(node: Node, tracer: OpTracer) -> dict[str, float | str]:
    """A clamp a few ops upstream, with its bounds and what they round to in the tensor's format."""
    frontier = [edge.producer for edge in node.traced.inputs]
    steps = 0
    while frontier and steps < _UPSTREAM:
        reached: list[int] = []
        for producer in frontier:
            if producer < 0:
                continue
            upstream = tracer.nodes[producer]
            steps += upstream.traced.op not in VIEWS
            bounds = [v for v in upstream.scalars.values() if isinstance(v, (int, float))]
            if canonical(upstream.traced.op) in ("clamp", "maximum") and bounds and upstream.dtypes[0] in _EPS:
                dtype = upstream.dtypes[0]
                bound = float(bounds[-1])
                rounded = ms.Tensor(np.array(bound, np.float64)).astype(getattr(ms, dtype))
                return {
                    "clamp_bound": bound,
                    "clamp_bound_rounded": float(values(rounded)),
                    "clamp_dtype": dtype,
                    "clamp_eps": _EPS[dtype],
                }
            reached.extend(edge.producer for edge in upstream.traced.inputs)
        frontier = reached
        steps += 1
    return {}
