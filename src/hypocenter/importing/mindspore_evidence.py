"""Evidence of a failure in a dumped graph: blame by reachability in the graph, as a replay does it for other programs.

Nothing is executed in the program: the dump has what every operator read and wrote. Only the operator to blame is done
again in float64, by NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from hypocenter.compare.weights.checkpoint import CheckpointError, whole
from hypocenter.compare.weights.elements import values
from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts
from hypocenter.diagnose.origin import Blame, blame
from hypocenter.formats import FORMATS
from hypocenter.importing.mindspore_graph import GraphParameter, Node
from hypocenter.importing.mindspore_items import Execution, Item
from hypocenter.importing.mindspore_step import Step
from hypocenter.importing.mindspore_values import Value
from hypocenter.nouns import Summary
from hypocenter.operator_names import canonical
from hypocenter.optrace import NAN, NEGINF, POSINF, REAL, Edge, TracedOp, classify

_AT_MOST = 1 << 24  # elements of an output whose bad ones are looked up
_INDICES = 16
_PATH = 12
_LITERAL = 3  # POSINF and NEGINF shifted by this are LITERAL_POSINF and LITERAL_NEGINF
_FLIPS_SIGN = frozenset({"neg", "sub", "rsub", "mul", "div", "negative"})


def evidence_of(step: Step, runs: list[Execution], *, rank: int) -> Evidence | None:
    """Return what a micro-batch's dump tells of why loss or gradients are not finite; None if they are.

    Args:
        step: that has read the runs.
        runs: in their order.
        rank: whose they are.
    """
    is_bad_loss = step.loss is not None and not math.isfinite(step.loss)
    if not (is_bad_loss or step.n_bad_grads):
        return None
    trace = trace_of(step, runs)
    bad = tuple(dict.fromkeys(_bad_params(step, trace)))
    trigger = "nonfinite-loss" if is_bad_loss else "nonfinite-grad"
    base = Evidence(
        id=f"step-{step.step:06d}-{trigger}", trigger=trigger, step=step.step, microbatch=step.microbatch, rank=rank,
        bad_params=bad, replayed_bad_params=bad, forward_finite=not is_bad_loss, n_params=_n_updated(step, runs),
        reproduced=True,
    )  # fmt: skip
    found = blame(trace.ops, trace.targets(step))
    if found is None:
        return replace(base, reproduced=False, why_not="the dump does not show where the values came from")
    if found.leaf is not None:
        return _of_leaf(base, trace.leaves[found.leaf])
    return _of_origin(base, step, trace, found)


def _bad_params(step: Step, trace: Trace) -> list[str]:
    return [
        updated.name for index, run in enumerate(trace.runs)
        if trace.gradient(step, index) is not None and (updated := _updated(step, run)) is not None
    ]  # fmt: skip


def _n_updated(step: Step, runs: list[Execution]) -> int:
    return sum(_updated(step, run) is not None for run in runs)


def _updated(step: Step, run: Execution) -> GraphParameter | None:
    flow = step.flows.get(run.graph)
    found = flow.updated(run.node) if flow is not None and run.node is not None else None
    return found[0] if found is not None else None


def _of_leaf(base: Evidence, leaf: Leaf) -> Evidence:
    if leaf.kind == "missing":
        return replace(base, reproduced=False, why_not=f"{leaf.name} made the values, and was not dumped")
    facts = TensorFacts(
        name=leaf.name, dtype=leaf.value.dtype, shape=leaf.value.shape, summary=_plain(leaf.value.summary)
    )  # fmt: skip
    return replace(base, leaf=facts, leaf_kind=leaf.kind, chips=_chips(leaf.value.summary, leaf.value.lacks))


def _of_origin(base: Evidence, step: Step, trace: Trace, found: Blame) -> Evidence:
    assert found.origin is not None
    run = trace.runs[found.origin]
    origin = _facts(step, trace, found.origin, has_tensors=True)
    output = next((o for o in origin.outputs if o.summary.n_nonfinite), None)
    item = next((i for i in run.outputs if _is_bad(step, run, i)), None)
    value = step.values.of(run, item) if item is not None else None
    indices, samples, n_samples = _where(step, run, item)
    maker = found.nan_maker
    factor = next((i for i in found.path if _is_zero_times_inf(step, trace, i)), None)
    form = FORMATS.get(output.dtype) if output is not None else None
    return replace(
        base, origin=replace(origin, port=output.name if output is not None else origin.port),
        chips=_chips(value.summary, value.lacks) if value is not None else (),
        indices=indices, index_shape=value.shape if value is not None else (), samples=samples, n_samples=n_samples,
        float64=done_again(step, run) if origin.phase != "backward" else Rerun(why_not="it ran in backward"),
        again=Rerun(why_not="a graph is not run again"), cpu=Rerun(why_not="a graph is not run again"),
        limit=form.max if form is not None else None,
        nan_maker=_facts(step, trace, maker) if maker is not None and maker != found.origin else None,
        multiplier_zero=_facts(step, trace, factor) if factor is not None else None,
        killed=tuple(_facts(step, trace, i) for i in found.killed[:_PATH]),
        path=tuple(_facts(step, trace, i) for i in found.path[:_PATH]),
    )  # fmt: skip


def _facts(step: Step, trace: Trace, index: int, *, has_tensors: bool = False) -> OpFacts:
    run = trace.runs[index]
    scope, _, _, phase = step.place_of(run)
    flow = step.flows.get(run.graph)
    forward = flow.forward_of(run.node) if flow is not None and run.node is not None and phase == "backward" else None
    node = run.node if forward is None else forward
    return OpFacts(
        index=index, op=forward.op if forward is not None else run.op_type, phase=phase, site=scope.site,
        module=scope.kind_of_cell, source=flow.source(node) if flow is not None and node is not None else None,
        inputs=tuple(_tensors(step, run, run.inputs)) if has_tensors else (),
        outputs=tuple(_tensors(step, run, run.outputs)) if has_tensors else (),
        scalars={"backward_op": run.op_type} if forward is not None else {},
    )  # fmt: skip


def _tensors(step: Step, run: Execution, items: list[Item]) -> list[TensorFacts]:
    found: list[TensorFacts] = []
    for item in items:
        value = step.values.of(run, item)
        if value is None or not value.dtype.startswith(("float", "bfloat", "complex")):
            continue
        port = f"{'in' if item.name.io == 'input' else 'out'}[{item.name.slot}]"
        flow = step.flows.get(run.graph)
        weight = flow.weight(run.node, item.name.slot) if flow is not None and run.node is not None else None
        name = weight.name if weight is not None and item.name.io == "input" else ""
        found.append(
            TensorFacts(name=port, dtype=value.dtype, shape=value.shape, summary=_plain(value.summary), origin=name)
        )
    return found


def _plain(summary: Summary) -> Summary:
    return replace(summary, sketch=None)


def _is_bad(step: Step, run: Execution, item: Item) -> bool:
    value = step.values.of(run, item)
    return value is not None and value.summary.n_nonfinite > 0


def _where(step: Step, run: Execution, item: Item | None) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], int]:
    """Return the first bad elements of an output, the samples they belong to, and the number of samples."""
    array = _array(step, run, item)
    if array is None or array.size > _AT_MOST:
        return (), (), 0
    bad = np.argwhere(~np.isfinite(array))
    indices = tuple(tuple(int(i) for i in index) for index in bad[:_INDICES])
    n = step.batch_size
    if not n or array.ndim == 0 or array.shape[0] != n or n == 1:
        return indices, (), 0
    return indices, tuple(int(i) for i in np.unique(bad[:, 0])), n


def _array(step: Step, run: Execution, item: Item | None) -> Any:
    value = step.values.of(run, item) if item is not None else None
    if value is None or value.tensor is None or value.lacks:
        return None
    try:
        bits = np.ascontiguousarray(value.tensor.read(whole(value.tensor.shape)))
    except CheckpointError:
        return None
    found = values(bits, value.tensor.dtype)
    return found.astype(np.float64) if found.dtype.kind in "fiu" else None


def _is_zero_times_inf(step: Step, trace: Trace, index: int) -> bool:
    """Return whether a product made NaN of infinities exactly where the other factor is 0."""
    run, op = trace.runs[index], trace.ops[index]
    if op.op not in ("Mul", "Muls") or not op.bits & NAN or op.incoming & NAN or len(run.inputs) < 2:
        return False
    factors = [_array(step, run, item) for item in run.inputs[:2]]
    if factors[0] is None or factors[1] is None:
        return False
    try:
        one, other = np.broadcast_arrays(*factors)
    except ValueError:
        return False
    bad = np.isinf(one) & (other == 0) | np.isinf(other) & (one == 0)
    with np.errstate(all="ignore"):
        return bool(bad.any()) and bool((np.isnan(one * other) == bad).all())


def _chips(summary: Summary, lacks: str) -> tuple[str, ...]:
    counts = (("NaN", summary.n_nan), ("+inf", summary.n_posinf), ("-inf", summary.n_neginf))
    is_exact = "counts" not in lacks.split()
    return tuple(f"{kind} ×{n:,}" if is_exact else kind for kind, n in counts if n)


def _matmul(a: Any, b: Any, turn_a: Any = False, turn_b: Any = False) -> Any:
    left = np.swapaxes(a, -1, -2) if bool(turn_a) else a
    right = np.swapaxes(b, -1, -2) if bool(turn_b) else b
    return left @ right


_DONE: dict[str, tuple[int, Callable[..., Any]]] = {
    "mul": (2, np.multiply), "add": (2, np.add), "sub": (2, np.subtract), "div": (2, np.divide),
    "square": (1, np.square), "pow": (2, np.power), "exp": (1, np.exp), "expm1": (1, np.expm1), "log": (1, np.log),
    "log1p": (1, np.log1p), "sqrt": (1, np.sqrt), "rsqrt": (1, lambda x: 1 / np.sqrt(x)),
    "reciprocal": (1, np.reciprocal), "to": (1, lambda x: x), "neg": (1, np.negative), "abs": (1, np.abs),
    "matmul": (4, _matmul), "bmm": (4, _matmul), "maximum": (2, np.maximum), "minimum": (2, np.minimum),
}  # fmt: skip
"""By canonical name: how many inputs it takes, and what it does."""


def done_again(step: Step, run: Execution) -> Rerun:
    """Compute the first output again in float64, if NumPy has the operator and all of its inputs are known."""
    known = _DONE.get(canonical(run.op_type))
    if known is None or (run.op_type == "BiasAdd" and len(_shape(step, run)) != 2):
        return Rerun(why_not=f"{run.op_type} is not among the operators that NumPy does again")
    operands: list[Any] = []
    for item in run.inputs[: known[0]]:
        value = step.values.of(run, item)
        if value is None or value.tensor is None or value.lacks:
            return Rerun(why_not=f"input {item.name.slot} was not dumped as it was")
        if value.tensor.n > _AT_MOST:
            return Rerun(why_not=f"input {item.name.slot} is larger than {_AT_MOST:,} elements")
        try:
            bits = np.ascontiguousarray(value.tensor.read(whole(value.tensor.shape)))
        except CheckpointError as error:
            return Rerun(why_not=error.what)
        array = values(bits, value.tensor.dtype)
        operands.append(array.astype(np.float64) if array.dtype.kind in "fiu" else array)
    return _measured(known[1], operands)


def _measured(do: Callable[..., Any], operands: list[Any]) -> Rerun:
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(do(*operands))
    except (ValueError, TypeError, IndexError) as error:
        return Rerun(why_not=f"NumPy could not do it again ({type(error).__name__})")
    finite = np.isfinite(found)
    absmax = float(np.abs(found[finite]).max()) if finite.any() else 0.0
    return Rerun(ran=True, finite=bool(finite.all()), absmax=absmax, n_nonfinite=int(found.size - finite.sum()))


def _shape(step: Step, run: Execution) -> tuple[int, ...]:
    value = step.values.of(run, run.inputs[0]) if run.inputs else None
    return value.shape if value is not None else ()


# Who gave a value is told by the graph; between two graphs by the bytes themselves.
@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A value that no recorded operator made."""

    kind: Literal["batch", "param", "external", "missing"]  # missing: an operator made it that was not dumped
    name: str
    value: Value
    bits: int


@dataclass(slots=True, kw_only=True)
class Trace:
    """The runs of operators of a step, in their order."""

    runs: list[Execution]
    ops: list[TracedOp] = field(default_factory=list[TracedOp])
    leaves: list[Leaf] = field(default_factory=list[Leaf])

    def targets(self, step: Step) -> list[Edge]:
        """Return what is watched: the loss if it is not finite, else the gradients that are not."""
        for index, run in enumerate(self.runs):
            flow = step.flows.get(run.graph)
            if flow is not None and run.node is not None and run.node is flow.loss and self.ops[index].real:
                return [Edge(producer=index, bits=self.ops[index].bits)]
        return [edge for index in range(len(self.runs)) if (edge := self.gradient(step, index)) is not None]

    def gradient(self, step: Step, index: int) -> Edge | None:
        """Return where the gradient came from for a run that updates a parameter; None if finite, or no update."""
        run = self.runs[index]
        flow = step.flows.get(run.graph)
        found = flow.updated(run.node) if flow is not None and run.node is not None else None
        if found is None:
            return None
        slots = [slot for (io, slot) in sorted(run.items) if io == "input"]
        edge = self.ops[index].inputs[slots.index(found[1])] if found[1] in slots else None
        return edge if edge is not None and edge.real else None


def trace_of(step: Step, runs: list[Execution]) -> Trace:
    """Return the trace of what a step has read."""
    trace = Trace(runs=runs)
    made = _Made()
    for index, run in enumerate(runs):
        edges = tuple(_edge(step, run, item, trace, made) for item in run.inputs)
        trace.ops.append(_op(step, run, index, edges))
        made.put(step, run, index)
    return trace


@dataclass(slots=True)
class _Made:
    """Knows which run made which value."""

    by_node: dict[int, int] = field(default_factory=dict[int, int])
    by_bytes: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict[tuple[int, tuple[int, ...]], int])

    def put(self, step: Step, run: Execution, index: int) -> None:
        """Note the outputs of a run that has ended."""
        if run.node is not None:
            self.by_node[id(run.node)] = index
        for item in run.outputs:
            look = step.values.look(item)
            if look is not None:
                self.by_bytes[look] = index

    def by_graph(self, step: Step, run: Execution, slot: int) -> tuple[Node | None, int | None]:
        """Return the operator that an operand comes from, as the graph says, and its run if it was dumped."""
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
    """Return the number that stands for a leaf as producer: -1 - its index."""
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
    """Return the kinds of values that are not finite, as bits NAN, POSINF and NEGINF."""
    return NAN * bool(summary.n_nan) | POSINF * bool(summary.n_posinf) | NEGINF * bool(summary.n_neginf)
