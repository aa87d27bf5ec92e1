"""Measurements on the captured operands of a blamed operator: what the causes need beyond summaries."""

from __future__ import annotations

from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np

from hypocenter.formats import format_of
from hypocenter.operator_names import canonical
from hypocenter.replay.host_values import bad_mask
from hypocenter.replay.measured import measured
from hypocenter.replay.mindspore.adjudicate import operands
from hypocenter.replay.mindspore.host import flat, is_floating, values
from hypocenter.replay.mindspore.trace import VIEWS, OpTracer
from hypocenter.replay.node import Node

_UPSTREAM = 4  # operators between a clamp and the logarithm it protects


def facts(node: Node, tracer: OpTracer) -> dict[str, float | str]:
    """Named numbers about its operands, and the clamp that fed a log."""
    base, output = canonical(node.traced.op), node.bad_output
    floating = [values(t) for t in flat(operands(node)) if is_floating(t)]
    if not floating:
        return {}
    given = [
        values(v) if isinstance(v, ms.Tensor) else v if isinstance(v, (int, float)) else None for v in operands(node)
    ]
    axis = next((found for v in operands(node) if (found := _axis(v)) is not None), -1)
    found = measured(base, floating, given, None if output is None else bad_mask(output.array), axis)
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
            dtype = upstream.dtypes[0]
            form = format_of(dtype)
            if canonical(upstream.traced.op) in ("clamp", "maximum") and bounds and form is not None:
                bound = float(bounds[-1])
                rounded = ms.Tensor(np.array(bound, np.float64)).astype(getattr(ms, dtype))
                return {
                    "clamp_bound": bound,
                    "clamp_bound_rounded": float(values(rounded)),
                    "clamp_dtype": dtype,
                    "clamp_eps": form.eps,
                }
            reached.extend(edge.producer for edge in upstream.traced.inputs)
        frontier = reached
        steps += 1
    return {}
