"""What a replay under MindSpore's op trace can be asked."""

from __future__ import annotations

from hypocenter.diagnose.evidence import Rerun
from hypocenter.replay.host_values import Held
from hypocenter.replay.host_witness import HostWitness
from hypocenter.replay.mindspore import adjudicate, probes
from hypocenter.replay.mindspore.host import flat, held
from hypocenter.replay.mindspore.trace import OpTracer
from hypocenter.replay.node import Node
from hypocenter.replay.witness import Reruns


class Traced(HostWitness):
    """A traced micro-batch of MindSpore."""

    def __init__(self, tracer: OpTracer) -> None:
        super().__init__(tracer.nodes, tracer.leaves)
        self._tracer = tracer

    def operands(self, node: Node) -> list[tuple[str, Held]]:
        """See HostWitness."""
        pairs = zip(node.names, adjudicate.operands(node), strict=False)
        return [(name, held(tensor)) for name, value in pairs for tensor in flat(value)]

    def rerun(self, index: int) -> Reruns:
        """The op again; on the CPU only where it ran there, because a MindSpore process has one device."""
        node = self.nodes[index]
        return Reruns(
            float64=adjudicate.rerun_float64(node),
            again=adjudicate.rerun_same(node),
            cpu=Rerun(why_not="a MindSpore process computes on one device"),
        )

    def measured(self, index: int) -> dict[str, float | str]:
        """Named numbers about its operands."""
        return probes.facts(self.nodes[index], self._tracer)
