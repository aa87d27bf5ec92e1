"""What a replay under MindSpore's op trace can be asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hypocenter.diagnose.evidence import OpFacts, Rerun
from hypocenter.optrace import TracedOp
from hypocenter.replay.mindspore import adjudicate, probes
from hypocenter.replay.mindspore.trace import OpTracer
from hypocenter.replay.witness import BadLeaf, BadValues, Reruns


class Traced:
    """A traced micro-batch of MindSpore: a `Witness`."""

    def __init__(self, tracer: OpTracer) -> None:
        self._tracer = tracer
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
        if leaf.values is None:
            return None
        bad = adjudicate.bad_values(leaf.values, ~np.isfinite(leaf.values.array))
        return BadLeaf(facts=adjudicate.tensor_facts(leaf.values, leaf.name), kind=leaf.kind, bad=bad)

    def bad_output(self, index: int) -> BadValues | None:
        """The first output of an op that is not finite."""
        output = adjudicate.bad_output(self._tracer.nodes[index])
        return None if output is None else adjudicate.bad_values(output, adjudicate.bad_mask(output.array))

    def rerun(self, index: int) -> Reruns:
        """The op again; on the CPU only where it ran there, because a MindSpore process has one device."""
        node = self._tracer.nodes[index]
        return Reruns(
            float64=adjudicate.rerun_float64(node),
            again=adjudicate.rerun_same(node),
            cpu=Rerun(why_not="a MindSpore process computes on one device"),
        )

    def measured(self, index: int) -> dict[str, float | str]:
        """Named numbers about its operands."""
        return probes.facts(self._tracer.nodes[index], self._tracer)

    def upstream_grad_zero(self, index: int) -> bool | None:
        """Whether the gradient that came in is exactly 0 at every bad element."""
        return probes.upstream_grad_zero(self._tracer.nodes[index])
