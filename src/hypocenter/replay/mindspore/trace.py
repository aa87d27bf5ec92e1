"""The op trace of one replayed micro-batch: which op read what from whom, and where values stopped being finite.

MindSpore's dispatch mode shows the operators of forward and most of backward, by name. Data flow is followed by memory
address; every result is kept alive meanwhile, so that no address comes twice. What the mode does not show is closed up:

- an operator gets a contiguous copy of a view: such a copy is known by its content, if that is not finite;
- hooks on everything an operator reads tell which forward operator's gradient is computed next, and what it came to,
  also where the operators that compute it are not shown (LayerNormGrad);
- a value that nobody was seen to make, and that is not finite, gets a node of its own, "unseen", under the value that
  was not finite before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore.utils import MsDispatchMode  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.operator_names import canonical
from hypocenter.optrace import NAN, Edge, TracedOp, classify, is_transition
from hypocenter.replay.host_values import as_constants, bits_of, same_values
from hypocenter.replay.mindspore.arguments import GradientOf, argument_names, literal_bits, operands_of, scalars_of
from hypocenter.replay.mindspore.host import flat, held, is_floating, nonfinite_bits, values
from hypocenter.replay.mindspore.not_shown import Shown, show_more
from hypocenter.replay.mindspore.places import Places
from hypocenter.replay.mindspore.producers import Producers, Written
from hypocenter.replay.node import Leaf, Node
from hypocenter.replay.place import Place
from hypocenter.summary.reducers.mindspore_values import dtype_name

CAPTURE_BYTES = 256 << 20  # per op: what adjudication needs
MAX_CAPTURES = 48
_SIGN_FLIPS = frozenset({"neg", "mul", "div", "sub", "rsub"})
_BOUNDED = frozenset({"softmax", "sigmoid", "tanh"})
_WRITES = frozenset({"Assign", "AssignAdd", "AssignSub", "CopyTo"})
_NOT_VALUES = frozenset({"typeof", "sequence_len", "make_range", "Shape", "Depend"})
VIEWS = frozenset({
    "Reshape", "Transpose", "TransposeView", "TransposeExtView", "ExpandDims", "ExpandDimsView", "Squeeze",
    "BroadcastTo", "BroadcastToView", "View", "Flatten", "FlattenExt", "Split", "SplitTensor", "StridedSlice",
    "SelectExtView", "GetItem", "Contiguous", "Copy", "Narrow", "ChunkView",
})  # fmt: skip
"""Operators that compute nothing: steps of a path that nobody wants to read."""

UNSEEN = "unseen"
COMPILED = "CompiledFunction"


@dataclass(slots=True, kw_only=True)
class _Call:
    """An operator that is about to run."""

    args: Any
    operands: tuple[Any, ...]
    read: list[Any]
    edges: tuple[Edge, ...]
    written: list[Any]  # operands that it changes in place
    before: dict[int, Any]  # what they were


class OpTracer(MsDispatchMode):  # pyright: ignore[reportUntypedBaseClass]
    """Trace every op of a replay.

    Args:
        places: where operators run.
        leaf: names tensors from outside: tensor -> (kind, name).
    """

    def __init__(self, places: Places, leaf: Callable[[Any], tuple[str, str]]) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.leaves: list[Leaf] = []
        self.broken = ""  # why the trace is not complete
        self._places, self._leaf = places, leaf
        self._made = Producers()
        self._n_captures = 0
        self._is_own = False  # operators of ours run
        self._in_backward = False
        self._owner: int | None = None  # forward op whose gradient is being computed
        self._gradients: dict[int, tuple[Edge, Any]] = {}  # forward op -> gradient at its result
        self._readers: dict[int, list[int]] = {}  # leaf's edge -> forward ops that read it
        self._undo: Callable[[], None] = lambda: None

    def __enter__(self) -> OpTracer:
        """Trace from here on."""
        self._undo = show_more(self._is_listening, lambda: len(self.nodes), self._view, self._compiled)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop tracing."""
        super().__exit__(*error)
        self._undo()

    def _is_listening(self) -> bool:
        return not (self._is_own or self.broken or self._in_backward)

    def _view(self, run: Callable[..., Any], tensor: Any, out: Any) -> None:
        with self._own():
            self._add_view(Shown("GetItem", run), tensor, out)

    def _compiled(self, function: Any, read: list[Any], outputs: tuple[Any, ...]) -> None:
        with self._own():
            self._add_compiled(function, read, outputs)

    def trace(self) -> tuple[TracedOp, ...]:
        """Return the ops as plain data, for the blame walk."""
        return tuple(node.traced for node in self.nodes)

    def forward_over(self, roots: Sequence[Any]) -> None:
        """Note that backward begins, from these values."""
        made: list[int] = []
        with self._own():
            made = [self._root(root).producer for root in roots]
        self._in_backward = True
        self._owner = max(made, default=len(self.nodes) - 1)

    def _root(self, tensor: Any) -> Edge:
        """Return what made a value that backward starts from: perhaps a compiled function, out of what came last."""
        now = nonfinite_bits(tensor)
        known = self._made.known(tensor, now)
        if known is not None or not now or not self.nodes:
            return known or Edge(producer=len(self.nodes) - 1)
        last = self.nodes[-1].traced
        return self._unseen(tensor, now, (Edge(producer=last.index, bits=last.bits),))

    def edge_to(self, tensor: Any) -> Edge:
        """Return what made this tensor, and what it holds."""
        with self._own():
            return self._edge(tensor)
        return Edge(producer=0)

    def edge_to_gradient(self, gradient: Any, parameter: Any) -> Edge:
        """Return the same for a gradient as it came out, which an operator may have made that was not seen."""
        with self._own():
            known = self._made.known(gradient, nonfinite_bits(gradient))
            if known is not None:
                return known
            leaf = self._made.at(parameter)
            readers = self._readers.get(leaf.edge, []) if leaf is not None else []
            bad = [index for index in readers if (at := self._gradients.get(index)) is not None and at[0].real]
            consumer = next(iter(bad or readers), None)
            if consumer is None or leaf is None:
                return self._edge(gradient)
            read = [edge.producer for edge in self.nodes[consumer].traced.inputs]
            return self._unseen_gradient(gradient, consumer, read.index(leaf.edge))
        return Edge(producer=0)

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        """Run an operator in its place, and add it to the trace."""
        if self._is_own or self.broken or func.name in _NOT_VALUES:
            return func(*args)
        call: _Call | None = None
        with self._own():
            call = self._before(func.name, args)
        out = func(*args)
        if call is not None:  # pyright: ignore[reportUnnecessaryComparison]
            with self._own():
                self._add(func, call, tuple(call.written) or tuple(flat(out)))
        return out

    def _before(self, name: str, args: Any) -> _Call:
        operands = operands_of(args)
        read = list(flat(operands))
        edges = tuple(self._edge(tensor) for tensor in read)
        if not self._in_backward:
            for position, (tensor, edge) in enumerate(zip(read, edges, strict=True)):
                self._follow(tensor, edge, len(self.nodes), position)
        written = read[:1] if name in _WRITES or name.startswith("Inplace") else []
        before = {id(t): copied(t) for t in written}
        return _Call(args=args, operands=operands, read=read, edges=edges, written=written, before=before)

    @contextlib.contextmanager
    def _own(self) -> Generator[None, None, None]:
        """Run operators of ours in this block; an error in it ends the trace, not the program's forward."""
        was, self._is_own = self._is_own, True
        try:
            yield
        except Exception as error:
            self.broken = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
        finally:
            self._is_own = was

    def _add_view(self, func: Any, tensor: Any, out: Any) -> None:
        edge = self._edge(tensor)
        self._follow(tensor, edge, len(self.nodes), 0)
        call = _Call(args=(tensor,), operands=(tensor,), read=[tensor], edges=(edge,), written=[], before={})
        self._add(func, call, (out,))

    def _add_compiled(self, function: Any, read: list[Any], outputs: tuple[Any, ...]) -> None:
        """Add a function that ran as a compiled graph as one node, for its operators cannot be seen."""
        cell: Any = getattr(function, "obj", None)
        weights = [p for _, p in cell.parameters_and_names()] if isinstance(cell, ms.nn.Cell) else []
        read = [t for t in read if not isinstance(t, ms.Parameter)] + weights
        index = len(self.nodes)
        edges = tuple(self._edge(tensor) for tensor in read)
        for position, (tensor, edge) in enumerate(zip(read, edges, strict=True)):
            self._follow(tensor, edge, index, position)
        call = _Call(args=tuple(read), operands=tuple(read), read=read, edges=edges, written=[], before={})
        self._add(Shown(COMPILED, _cannot_run), call, outputs)
        node = self.nodes[index]
        node.live, node.place = None, self._places.of(cell, node.place)

    def _add(self, func: Any, call: _Call, outputs: tuple[Any, ...]) -> None:
        name, index = str(func.name), len(self.nodes)
        operands, read, edges = call.operands, call.read, call.edges
        base = canonical(name)
        literal = literal_bits(operands)
        told = () if base in _BOUNDED else edges  # what these give is never a constant of the program
        arrays = [values(t) if is_floating(t) else None for t in outputs]
        bits, news = 0, []
        for array in arrays:
            now = 0 if array is None else bits_of(array)
            news.append(classify(now, told, literal, flips_sign=base in _SIGN_FLIPS))
            bits |= news[-1]
        traced = TracedOp(
            index=index,
            op=name,
            phase=(place := self._place()).phase,
            bits=bits,
            inputs=edges,
            zero_factor=bool(bits & NAN) and base == "mul" and other_factor_is_zero(read, edges, arrays),
        )
        node = Node(
            traced=traced,
            place=place,
            names=argument_names(name, len(operands)),
            shapes=tuple(tuple(t.shape) for t in outputs),
            dtypes=tuple(dtype_name(t) for t in outputs),
        )
        outside = {id(t) for t, edge in zip(read, edges, strict=True) if edge.producer < 0}
        if place.phase != "backward" and not self._made.is_full:
            node.live = call.args
        node.scalars = scalars_of(operands, node.names, outside)
        size = sum(int(t.nbytes) for t in (*read, *outputs))
        if is_transition(traced) and self._n_captures < MAX_CAPTURES and size <= CAPTURE_BYTES:
            self._n_captures += 1
            node.func, node.args = func, detached(call.args, call.before)
            node.upstream = self._upstream(read) if place.phase == "backward" else None
            node.outputs = tuple(held(t) for t, a in zip(outputs, arrays, strict=True) if a is not None)
        self.nodes.append(node)
        for tensor, array, found in zip(outputs, arrays, news, strict=True):
            self._made.write(tensor, array, Written(index, found))

    def _place(self) -> Place:
        if not self._in_backward:
            return self._places.here()
        if self._owner is None or not 0 <= self._owner < len(self.nodes):
            return Place(phase="backward", site="")
        owner = self.nodes[self._owner]
        return owner.place.backward(owner.traced.op)

    def _upstream(self, read: list[Any]) -> int | None:
        """Return which operand is the gradient at the result of the forward op whose gradient is being computed."""
        came = self._gradients.get(self._owner) if self._owner is not None else None
        if came is None:
            return None
        array = values(came[1])
        found = (
            i for i, t in enumerate(read) if is_floating(t) and same_values(values(t).reshape(-1), array.reshape(-1))
        )
        return next(found, None)

    def _edge(self, tensor: Any, consumer: tuple[int, int | None] | None = None) -> Edge:
        """Return what made this tensor, and what it holds.

        Args:
            consumer: of a gradient: (forward op that read what it is the gradient of, as its how-manieth tensor).
        """
        now = nonfinite_bits(tensor)
        known = self._made.known(tensor, now)
        if known is not None:
            return known
        kind, name = self._leaf(tensor)
        if now and kind == "external":
            consumer = consumer or ((self._owner, None) if self._owner is not None else None)
            if self._in_backward and consumer is not None:
                return self._unseen_gradient(tensor, *consumer)
            last = None if self._in_backward or not tensor.shape else self._last_bad()
            if last is not None and is_computed(tensor):  # else it is a constant of the program's
                return self._unseen(tensor, now, (Edge(producer=last, bits=self.nodes[last].traced.bits),))
        bits = as_constants(now, kind, is_number=not tensor.shape)
        self.leaves.append(
            Leaf(
                kind=kind,
                name=name,
                bits=bits,
                values=held(tensor) if bits else None,
            )
        )
        written = Written(-len(self.leaves), bits)
        self._made.write(tensor, values(tensor) if bits else None, written)
        return Edge(producer=written.edge, bits=bits)

    def _last_bad(self) -> int | None:
        return next((edge for edge in self._made.last_bad() if self.nodes[edge].traced.real), None)

    def _unseen(
        self, tensor: Any, now: int, inputs: tuple[Edge, ...], place: Place | None = None, op: str = ""
    ) -> Edge:
        """Add a node for an operator that the mode did not show."""
        place = place or self._place()
        bits = classify(now, inputs, 0, flips_sign=True)
        index = len(self.nodes)
        array = values(tensor)
        traced = TracedOp(index=index, op=op or UNSEEN, phase=place.phase, bits=bits, inputs=inputs)
        node = Node(traced=traced, place=place, shapes=(tuple(tensor.shape),), dtypes=(dtype_name(tensor),))
        node.outputs = (held(tensor),) if array.nbytes <= CAPTURE_BYTES else ()
        self.nodes.append(node)
        self._made.write(tensor, array, Written(index, bits))
        return Edge(producer=index, bits=bits)

    def _unseen_gradient(self, tensor: Any, consumer: int, position: int | None) -> Edge:
        """Add what the gradient of a forward op came to, made by an operator that was not shown.

        Args:
            consumer: the forward op.
            position: the how-manieth tensor of its operands this is the gradient of; None: not known.
        """
        forward = self.nodes[consumer]
        upstream, seed = self._gradients.get(consumer, (None, None))
        if upstream is None:
            self.leaves.append(Leaf(kind="external", name="the loss's own gradient, 1"))
            upstream = Edge(producer=-len(self.leaves))
        inputs = (upstream, *forward.traced.inputs)
        if forward.traced.bits:  # of many functions the gradient is computed from the result
            inputs = (*inputs, Edge(producer=consumer, bits=forward.traced.bits))
        place = forward.place.backward(forward.traced.op)
        edge = self._unseen(tensor, nonfinite_bits(tensor), inputs, place, f"{forward.traced.op}Grad")
        node = self.nodes[edge.producer]
        if position is not None and forward.live is not None and is_transition(node.traced):
            if seed is None and len(forward.shapes) == 1:
                seed = ms.ops.ones(forward.shapes[0], getattr(ms, forward.dtypes[0]))
            if seed is not None:
                gradient = GradientOf(forward.traced.op, forward.live, position=position)
                node.func, node.args = gradient, (copied(seed), *(copied(t) for t in gradient.tensors))
                node.names, node.upstream = ("grad", *gradient.names(forward.names)), 0
        return edge

    def _follow(self, tensor: Any, edge: Edge, consumer: int, position: int) -> None:
        """Hear the gradient of what an operator reads, just before that of its producer is computed."""
        if edge.producer < 0:
            self._readers.setdefault(edge.producer, []).append(consumer)
        if isinstance(tensor, ms.Parameter) or not is_floating(tensor):
            return

        def told(gradient: Any) -> Any:
            if gradient is not None and not self._is_own:
                with self._own():
                    at = self._edge(gradient, (consumer, position))
                    if edge.producer >= 0:
                        self._gradients[edge.producer] = (at, gradient)
                        self._owner = edge.producer
            return gradient

        with contextlib.suppress(Exception):  # it needs no gradient
            tensor.register_hook(told)


def _cannot_run(*args: Any) -> Any:
    raise NotImplementedError("it is a compiled graph, whose operators cannot be executed one by one")


def other_factor_is_zero(read: list[Any], edges: tuple[Edge, ...], outputs: Sequence[NDArray[Any] | None]) -> bool:
    """Return whether a product is NaN only where the factor that was finite is exactly 0."""
    if len(read) != 2 or len(outputs) != 1 or outputs[0] is None or bool(edges[0].real) == bool(edges[1].real):
        return False
    other = values(read[1] if edges[0].real else read[0])
    return bool((np.broadcast_to(other, outputs[0].shape)[np.isnan(outputs[0])] == 0).all())


def is_computed(tensor: Any) -> bool:
    """Return whether an operator made it out of parameters; False for constants of the program."""
    return getattr(tensor, "_is_leaf", True) is False


def copied(tensor: Any) -> Any:
    """Return a tensor of its own with the same values, off the graph of gradients."""
    return ms.Tensor(values(tensor).copy(), tensor.dtype)


def detached(value: Any, before: dict[int, Any]) -> Any:
    """Return the arguments as they were before the op ran, off the graph of gradients."""
    if isinstance(value, ms.Tensor):
        kept = before.get(id(value))
        return kept if kept is not None else copied(value)
    if isinstance(value, (list, tuple)):
        return type(value)(detached(item, before) for item in value)
    return value
