"""One step of a dumped graph as a trace of operators: which run read what from whom, and what was not finite in it.

Who gave a value is told by the graph; between two graphs by the bytes themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypocenter.importing.mindspore_graph import GraphParameter, Node
from hypocenter.importing.mindspore_items import Execution, Item
from hypocenter.importing.mindspore_step import Step
from hypocenter.importing.mindspore_values import Value
from hypocenter.nouns import Summary
from hypocenter.operator_names import canonical
from hypocenter.optrace import NAN, NEGINF, POSINF, REAL, Edge, TracedOp, classify

_LITERAL = 3  # POSINF and NEGINF shifted by this are LITERAL_POSINF and LITERAL_NEGINF
_FLIPS_SIGN = frozenset({"neg", "sub", "rsub", "mul", "div", "negative"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A value that no recorded operator made."""

    kind: Literal["batch", "param", "external", "missing"]  # missing: an operator made it that was not dumped
    name: str
    value: Value
    bits: int


@dataclass(slots=True, kw_only=True)
class Trace:
    """The runs of a step, in their order."""

    runs: list[Execution]
    ops: list[TracedOp] = field(default_factory=list[TracedOp])
    leaves: list[Leaf] = field(default_factory=list[Leaf])

    def targets(self, step: Step) -> list[Edge]:
        """What is watched: the loss if it is not finite, else the gradients that are not."""
        for index, run in enumerate(self.runs):
            flow = step.flows.get(run.graph)
            if flow is not None and run.node is not None and run.node is flow.loss and self.ops[index].real:
                return [Edge(producer=index, bits=self.ops[index].bits)]
        return [edge for index in range(len(self.runs)) if (edge := self.gradient(step, index)) is not None]

    def gradient(self, step: Step, index: int) -> Edge | None:
        """Of a run that updates a parameter where its gradient came from, if that is not finite."""
        run = self.runs[index]
        flow = step.flows.get(run.graph)
        found = flow.updated(run.node) if flow is not None and run.node is not None else None
        if found is None:
            return None
        slots = [slot for (io, slot) in sorted(run.items) if io == "input"]
        edge = self.ops[index].inputs[slots.index(found[1])] if found[1] in slots else None
        return edge if edge is not None and edge.real else None


def trace_of(step: Step, runs: list[Execution]) -> Trace:
    """The trace of what a step has read."""
    trace = Trace(runs=runs)
    made = _Made()
    for index, run in enumerate(runs):
        edges = tuple(_edge(step, run, item, trace, made) for item in run.inputs)
        trace.ops.append(_op(step, run, index, edges))
        made.put(step, run, index)
    return trace


@dataclass(slots=True)
class _Made:
    """Which run made what."""

    by_node: dict[int, int] = field(default_factory=dict[int, int])
    by_bytes: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict[tuple[int, tuple[int, ...]], int])

    def put(self, step: Step, run: Execution, index: int) -> None:
        """A run has ended."""
        if run.node is not None:
            self.by_node[id(run.node)] = index
        for item in run.outputs:
            look = step.values.look(item)
            if look is not None:
                self.by_bytes[look] = index

    def by_graph(self, step: Step, run: Execution, slot: int) -> tuple[Node | None, int | None]:
        """The operator that the graph says an operand is from, and its run if it was dumped."""
        flow = step.flows.get(run.graph)
        if flow is None or run.node is None:
            return None, None
        node = next((node for at, node, _ in flow.sources(run.node) if at == slot), None)
        return node, self.by_node.get(id(node)) if node is not None else None


def _edge(step: Step, run: Execution, item: Item, trace: Trace, made: _Made) -> Edge:
    slot = item.name.slot
    value = step.values.of(run, item)
    bits = bits_of(value.summary) if value is not None else 0
    maker, producer = made.by_graph(step, run, slot)
    weight = _parameter(step, run, slot)
    if producer is None and (weight is None or not weight.is_weight):
        look = step.values.look(item)
        producer = made.by_bytes.get(look) if look is not None and value is not None and value.shape else None
    if producer is not None:
        before = trace.ops[producer].bits
        if not bits and value is not None and "counts" in value.lacks:
            bits = before  # what a CPU labels wrongly: it is what it was when it was made
        literal = before & ~REAL
        both = (bits & NAN) | sum(kind for kind in (POSINF, NEGINF) if bits & kind and (before & kind or not literal))
        return Edge(producer=producer, bits=both | (literal & (bits << _LITERAL)))
    if not bits or value is None:
        return Edge(producer=_leaf(trace, Leaf(kind="external", name="", value=_NOTHING, bits=0)), bits=0)
    if _is_constant(run, slot):
        return Edge(producer=_leaf(trace, Leaf(kind="external", name="a constant", value=value, bits=0)),
                    bits=(bits & NAN) | (bits & ~NAN) << _LITERAL)  # fmt: skip
    if maker is not None:
        name = ".".join(part for part in (step.flows[run.graph].scope(maker).site, maker.op) if part)
        return Edge(producer=_leaf(trace, Leaf(kind="missing", name=name, value=value, bits=bits)), bits=bits)
    kind = "external" if weight is None else "param" if weight.is_weight else "batch"
    name = weight.name if weight is not None else f"in[{slot}] of {run.op_type}"
    return Edge(producer=_leaf(trace, Leaf(kind=kind, name=name, value=value, bits=bits)), bits=bits)


_NOTHING = Value(shape=(), dtype="", summary=Summary())


def _leaf(trace: Trace, leaf: Leaf) -> int:
    """The producer that stands for a leaf: -1 - its index."""
    for index, known in enumerate(trace.leaves):
        if (known.kind, known.name) == (leaf.kind, leaf.name) and known.bits == leaf.bits:
            return -1 - index
    trace.leaves.append(leaf)
    return -len(trace.leaves)


def _op(step: Step, run: Execution, index: int, edges: tuple[Edge, ...]) -> TracedOp:
    found, is_unknown = 0, False
    for item in run.outputs:
        value = step.values.of(run, item)
        if value is not None:
            found |= bits_of(value.summary)
            is_unknown = is_unknown or "counts" in value.lacks
    if not found and is_unknown:
        for edge in edges:
            found |= edge.real
    flips = canonical(run.op_type) in _FLIPS_SIGN
    bits = classify(found, edges, 0, flips_sign=flips)
    return TracedOp(index=index, op=run.op_type, phase=step.phase_of(run), bits=bits, inputs=edges)


def _parameter(step: Step, run: Execution, slot: int) -> GraphParameter | None:
    flow = step.flows.get(run.graph)
    return flow.parameter(run.node, slot) if flow is not None and run.node is not None else None


def _is_constant(run: Execution, slot: int) -> bool:
    node = run.node
    return node is not None and slot < len(node.operands) and not node.operands[slot].startswith("%")


def bits_of(summary: Summary) -> int:
    """Kinds of values that are not finite."""
    return NAN * bool(summary.n_nan) | POSINF * bool(summary.n_posinf) | NEGINF * bool(summary.n_neginf)
