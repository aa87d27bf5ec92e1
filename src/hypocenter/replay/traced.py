"""What a replay under torch's op trace can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hypocenter.diagnose.evidence import OpFacts, Rerun
from hypocenter.diagnose.operators import base as base_of
from hypocenter.optrace import TracedOp
from hypocenter.replay import adjudicate
from hypocenter.replay.adjudicate import bad_mask, bad_output
from hypocenter.replay.deadline import Deadline
from hypocenter.replay.measured import measured
from hypocenter.replay.witness import BadLeaf, BadValues, Reruns
from hypocenter.tap.nodes import Node
from hypocenter.tap.tracer import OpTracer


class Traced:
    """A traced micro-batch of torch: a `Witness`."""

    def __init__(self, tracer: OpTracer, deadline: Deadline) -> None:
        self._tracer, self._deadline = tracer, deadline
        self._trace = tracer.trace()

    def trace(self) -> Sequence[TracedOp]:
        """Return the ops as plain data."""
        return self._trace

    def op(self, index: int, *, detailed: bool = True) -> OpFacts:
        """Describe an op as plain facts."""
        return adjudicate.op_facts(self._tracer, self._tracer.nodes[index], detailed=detailed)

    def leaf(self, index: int) -> BadLeaf | None:
        """Describe a leaf that holds bad values; None if they are not known."""
        leaf = self._tracer.leaves[index]
        if leaf.tensor is None:
            return None
        mask = ~torch.isfinite(leaf.tensor)
        bad = BadValues(
            chips=adjudicate.chips(leaf.tensor),
            indices=_first(mask),
            shape=tuple(leaf.tensor.shape),
            limit=adjudicate.limit_of(leaf.tensor.dtype),
            mask=mask,
        )
        return BadLeaf(facts=adjudicate.tensor_facts(leaf.tensor, leaf.name), kind=leaf.kind, bad=bad)

    def bad_output(self, index: int) -> BadValues | None:
        """Describe the first output of an op that is not finite; None if there is none."""
        node = self._tracer.nodes[index]
        output = adjudicate.bad_output(node)
        if output is None:
            return None
        mask = adjudicate.bad_mask(output, node)
        return BadValues(
            chips=adjudicate.chips(output),
            indices=_first(mask),
            shape=tuple(output.shape),
            limit=adjudicate.limit_of(output.dtype),
            mask=mask,
        )

    def rerun(self, index: int) -> Reruns:
        """Execute the op again: in float64, as it was, and on the CPU."""
        node = self._tracer.nodes[index]
        on_device = any(t.device.type != "cpu" for t in node.outputs)
        return Reruns(
            float64=adjudicate.rerun_float64(node, self._deadline),
            again=adjudicate.rerun_same(node, self._deadline),
            cpu=adjudicate.rerun_on_cpu(node, self._deadline) if on_device else Rerun(why_not="it ran on the CPU"),
        )

    def measured(self, index: int) -> dict[str, float | str]:
        """Return named numbers about its operands."""
        return facts(self._tracer.nodes[index], self._tracer)

    def upstream_grad_zero(self, index: int) -> bool | None:
        """Return whether the gradient that came in is exactly 0 at every bad element; None if it is not known."""
        return upstream_grad_zero(self._tracer.nodes[index])


def _first(mask: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in row) for row in mask.nonzero()[: adjudicate.MAX_INDICES].tolist())


def upstream_grad_zero(node: Node) -> bool | None:
    """Return whether the gradient that came into a blamed backward op was exactly 0 at every bad element, or None."""
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
    """Return named numbers about its operands, valid labels, and the clamp that fed a log."""
    if not node.args or node.why_not_again:
        return {}
    base, output = base_of(node.traced.op), bad_output(node)
    given = [_on_host(value) for value in node.args]
    floating = [
        array
        for array, value in zip(given, node.args, strict=True)
        if isinstance(array, np.ndarray) and isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    dim = next((value for value in node.args if isinstance(value, int) and not isinstance(value, bool)), -1)
    bad = None if output is None else bad_mask(output, node).cpu().numpy()
    found = measured(base, floating, given, bad, dim)
    if base.startswith("nll_loss") and len(node.args) >= 5 and isinstance(node.args[1], torch.Tensor):
        found["n_valid_labels"] = float((node.args[1] != node.args[4]).sum())
        found["ignore_index"] = float(node.args[4])
    if base.startswith("log") or base in ("div", "reciprocal", "pow"):
        found.update(_clamp_upstream(node, tracer))
    return found


def _on_host(value: Any) -> npt.NDArray[np.generic] | float | None:
    """Return a tensor as an array, a number as it is; None for anything else."""
    if isinstance(value, torch.Tensor):
        return (value.float() if value.dtype in (torch.float16, torch.bfloat16) else value).cpu().numpy()
    return value if isinstance(value, (int, float)) else None


def _clamp_upstream(node: Node, tracer: OpTracer) -> dict[str, float | str]:
    """Describe a clamp at most four ops upstream, with its bounds and what they round to in the tensor's format."""
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
                    "clamp_bound_rounded": float(torch.tensor(bound, dtype=dtype, device="cpu")),
                    "clamp_dtype": upstream.dtypes[0],
                    "clamp_eps": float(torch.finfo(dtype).eps),
                }
            reached.extend(edge.producer for edge in upstream.traced.inputs)
        frontier = reached
    return {}
