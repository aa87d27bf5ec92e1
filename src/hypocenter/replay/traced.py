"""What a replay under torch's op trace can be asked."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter.diagnose.evidence import OpFacts, Rerun
from hypocenter.optrace import TracedOp
from hypocenter.replay import adjudicate, probes
from hypocenter.replay.deadline import Deadline
from hypocenter.replay.witness import BadLeaf, BadValues, Reruns
from hypocenter.tap.tracer import OpTracer


class Traced:
    """A traced micro-batch of torch: a `Witness`."""

    def __init__(self, tracer: OpTracer, deadline: Deadline) -> None:
        self._tracer, self._deadline = tracer, deadline
        self._trace = tracer.trace()

    def trace(self) -> Sequence[TracedOp]:
        """The ops as plain data."""
        return self._trace

    def op(self, index: int, *, detailed: bool = True) -> OpFacts:
        """An op as plain facts."""
        return adjudicate.op_facts(self._tracer, self._tracer.nodes[index], detailed=detailed)

    def leaf(self, index: int) -> BadLeaf | None:
        """A bad leaf."""
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
        """The first output of an op that is not finite."""
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
        """The op again."""
        node = self._tracer.nodes[index]
        on_device = any(t.device.type != "cpu" for t in node.outputs)
        return Reruns(
            float64=adjudicate.rerun_float64(node, self._deadline),
            again=adjudicate.rerun_same(node, self._deadline),
            cpu=adjudicate.rerun_on_cpu(node, self._deadline) if on_device else Rerun(why_not="it ran on the CPU"),
        )

    def measured(self, index: int) -> dict[str, float | str]:
        """Named numbers about its operands."""
        return probes.facts(self._tracer.nodes[index], self._tracer)

    def upstream_grad_zero(self, index: int) -> bool | None:
        """Whether the gradient that came in is exactly 0 at every bad element."""
        return probes.upstream_grad_zero(self._tracer.nodes[index])


def _first(mask: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in row) for row in mask.nonzero()[: adjudicate.MAX_INDICES].tolist())
