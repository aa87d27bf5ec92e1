"""What a traced replay can be asked where values are arrays on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hypocenter.diagnose.evidence import OpFacts, TensorFacts
from hypocenter.optrace import TracedOp
from hypocenter.replay.host_values import Held, bad_mask, bad_values, tensor_facts
from hypocenter.replay.node import Leaf, Node
from hypocenter.replay.witness import BadLeaf, BadValues, Reruns


class HostWitness:
    """A `Witness` of values on the host, from which one of each framework derives.

    Args:
        nodes: operators as they ran.
        leaves: tensors that were there before.
    """

    def __init__(self, nodes: Sequence[Node], leaves: Sequence[Leaf]) -> None:
        self.nodes, self.leaves = nodes, leaves
        self._trace = tuple(node.traced for node in nodes)

    # of a framework

    def operands(self, node: Node) -> Sequence[tuple[str, Held]]:
        """Return (name, values) of the tensors that were captured of an operator's arguments."""
        raise NotImplementedError

    def rerun(self, index: int) -> Reruns:
        """Execute the operator again, in several ways."""
        raise NotImplementedError

    def measured(self, index: int) -> dict[str, float | str]:
        """Return named numbers about its operands: see hypocenter.replay.measured."""
        raise NotImplementedError

    # for all

    def trace(self) -> Sequence[TracedOp]:
        """Return the operators as plain data."""
        return self._trace

    def op(self, index: int, *, detailed: bool = True) -> OpFacts:
        """Describe an operator as plain facts; in backward under the name of the forward operator it differentiates."""
        node = self.nodes[index]
        traced, place = node.traced, node.place
        is_backward = place.phase == "backward"
        return OpFacts(
            index=traced.index,
            op=place.forward_op if is_backward and place.forward_op else traced.op,
            phase=place.phase,
            site=place.site,
            module=place.module,
            port="grad_in[0]" if is_backward else "out[0]",
            source=place.source(),
            inputs=self._inputs(node) if detailed else (),
            outputs=tuple(tensor_facts(out, f"out[{i}]") for i, out in enumerate(node.outputs)) if detailed else (),
            scalars={**(node.scalars if detailed else {}), **({"backward_op": traced.op} if is_backward else {})},
        )

    def leaf(self, index: int) -> BadLeaf | None:
        """Describe a leaf that holds bad values; None if these are not known."""
        leaf = self.leaves[index]
        if leaf.values is None:
            return None
        bad = bad_values(leaf.values, ~np.isfinite(leaf.values.array))
        return BadLeaf(facts=tensor_facts(leaf.values, leaf.name), kind=leaf.kind, bad=bad)

    def bad_output(self, index: int) -> BadValues | None:
        """Describe the first output of an operator that is not finite; None if there is none."""
        output = self.nodes[index].bad_output
        return None if output is None else bad_values(output, bad_mask(output.array))

    def upstream_grad_zero(self, index: int) -> bool | None:
        """Return whether the gradient that came in was exactly 0 at every bad element; None if it is not known."""
        node = self.nodes[index]
        output = node.bad_output
        if node.place.phase != "backward" or output is None or not node.args or node.upstream is None:
            return None
        mask = bad_mask(output.array)
        try:
            incoming = np.broadcast_to(self.operands(node)[node.upstream][1].array, mask.shape)
        except ValueError:
            return None
        return bool((incoming[mask] == 0).all())

    def _inputs(self, node: Node) -> tuple[TensorFacts, ...]:
        found: list[TensorFacts] = []
        for position, (name, values) in enumerate(self.operands(node)):
            edge = node.traced.inputs[position] if position < len(node.traced.inputs) else None
            origin = "" if edge is None else self._producer(edge.producer)
            literal = edge is not None and bool(edge.bits) and not edge.real
            found.append(tensor_facts(values, name, origin, literal=literal))
        return tuple(found)

    def _producer(self, producer: int) -> str:
        """Say in words what made a tensor."""
        if producer < 0:
            leaf = self.leaves[-1 - producer]
            return f"{leaf.kind} {leaf.name}".strip()
        node = self.nodes[producer]
        return f"{node.traced.op} in {node.place.site or 'the model'}"
