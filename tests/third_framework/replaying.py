"""What a step of mininet needs to be done again, and doing it again under the op trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mininet as mn
import numpy as np
from listening import Hearing, Listener, Names, Taps, mapped, things

from hypocenter.diagnose.evidence import Evidence, Rerun
from hypocenter.diagnose.origin import blame
from hypocenter.optrace import NAN, Edge, TracedOp, classify
from hypocenter.replay import step_by_step
from hypocenter.replay.host_values import Held, as_constants, bad_mask, bits_of, compared
from hypocenter.replay.host_witness import HostWitness
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.measured import measured
from hypocenter.replay.node import Leaf, Node
from hypocenter.replay.place import Place
from hypocenter.replay.witness import Reruns

Rows = tuple[int, Sequence[int]]  # batch size, and which of its rows are kept


class Made(int):
    """The number of a tensor that an earlier event of the step made: only what came from outside is pinned."""


@dataclass(frozen=True)
class Event:
    """A call of an outermost module, or of an operator outside of modules."""

    run: Callable[..., Any]
    given: tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs
    made: list[int]  # numbers of tensors
    place: Place


@dataclass(frozen=True)
class Microbatch:
    """What ran before a `backward`, and after the one before it."""

    number: int
    root: int  # the tensor that backward starts from
    loss_value: float
    events: list[Event]

    def inputs(self) -> list[mn.Tensor]:
        """Tensors that came from outside."""
        found = dict.fromkeys(tensor for event in self.events for tensor in things(event.given, mn.Tensor))
        return [tensor for tensor in found if not isinstance(tensor, mn.Parameter)]


class Tape:
    """Micro-batches of the step under way, and events since the last one.

    Args:
        keep_bytes: most memory that inputs of one step may pin.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self.clear()

    def clear(self) -> None:
        """The step is over."""
        self.microbatches: list[Microbatch] = []
        self._events: list[Event] = []
        self._made, self._n_bytes = set[int](), 0

    def add(self, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, place: Place) -> None:
        """An event is over."""

        def kept(each: Any) -> Any:
            return Made(each.number) if isinstance(each, mn.Tensor) and each.number in self._made else each

        event = Event(run, mapped((args, kwargs), kept), [tensor.number for tensor in things(out, mn.Tensor)], place)
        self._n_bytes += sum(t.data.nbytes for t in things(event.given, mn.Tensor) if not isinstance(t, mn.Parameter))
        if self._n_bytes <= self._keep_bytes:
            self._events.append(event)
            self._made.update(event.made)

    def close(self, root: mn.Tensor, number: int) -> None:
        """`backward` was called."""
        loss = float(root.data.astype(np.float64).sum())
        self.microbatches.append(Microbatch(number, root.number, loss, self._events))
        self._events = []


class Tracer(Listener):
    """Hears a replay and knows who made what.

    Args:
        names: of modules and parameters.
        known: id of an array that is there before the replay -> (kind, name).
    """

    def __init__(self, names: Names, known: Mapping[int, tuple[str, str]]) -> None:
        super().__init__(names)
        self.nodes: list[Node] = []
        self.leaves: list[Leaf] = []
        self._known, self._made = known, dict[int, int]()  # id of an array, which a node keeps -> node, or -1 - leaf

    def compute(self, op: mn.Op, *arrays: mn.Array, **options: Any) -> Hearing:
        """Note an operator."""
        out = yield
        edges, found, is_product = tuple(map(self.edge, arrays)), bits_of(out), op.name == "mul"
        others = [array for array, edge in zip(arrays, edges, strict=True) if not edge.real]
        traced = TracedOp(
            index=len(self.nodes),
            op=op.name,
            phase=self.here.phase,
            bits=classify(found, edges, 0, flips_sign=is_product or op.name in ("neg", "div", "sub")),
            inputs=edges,
            zero_factor=is_product and bool(found & NAN) and len(others) == 1 and _is_zero(others[0], np.isnan(out)),
        )
        upstream = next((i for i, array in enumerate(arrays) if array is self.incoming), None)
        again = functools.partial(op.compute, **options)
        self._made[id(out)] = traced.index
        self.nodes.append(
            Node(traced=traced, place=self.here, func=again, args=arrays, outputs=(_held(out),), upstream=upstream)
        )

    def edge(self, array: mn.Array) -> Edge:
        """Who made an array, and what is not finite in it."""
        if id(array) not in self._made:
            kind, name = self._known.get(id(array), ("external", ""))
            bits = as_constants(bits_of(array), kind, is_number=array.ndim == 0)
            self.leaves.append(Leaf(kind=kind, name=name, values=_held(array), bits=bits))
            self._made[id(array)] = -len(self.leaves)
        producer = self._made[id(array)]
        made = self.nodes[producer].traced if producer >= 0 else self.leaves[-1 - producer]
        return Edge(producer=producer, bits=made.bits)


class Traced(HostWitness):
    """What a traced micro-batch can be asked."""

    def operands(self, node: Node) -> list[tuple[str, Held]]:
        """All arrays that it read."""
        return [(f"in[{i}]", _held(array)) for i, array in enumerate(node.args)]

    def rerun(self, index: int) -> Reruns:
        """In float64, and as it was."""
        node = self.nodes[index]
        wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in node.args]
        options = {"dtype": np.float64} if "dtype" in node.func.keywords else {}  # of a cast
        return Reruns(
            float64=compared(node.func(*wide, **options), node.outputs[0].array),
            again=compared(node.func(*node.args), node.outputs[0].array),
            cpu=Rerun(why_not="it ran on the CPU"),
        )

    def measured(self, index: int) -> dict[str, float | str]:
        """See hypocenter.replay.measured."""
        node = self.nodes[index]
        floating = [array for array in node.args if array.dtype.kind == "f"]
        return measured(node.traced.op, floating, node.args, bad_mask(node.outputs[0].array), -1)


def _held(array: mn.Array) -> Held:
    return Held(array=array, dtype=array.dtype.name)


def _is_zero(array: mn.Array, where: mn.Array) -> bool:
    return bool((np.broadcast_to(array, where.shape)[where] == 0).all())


class Replays:
    """Does micro-batches again, in place: the parameters are still those that the step started from."""

    def __init__(self, names: Names, taps: Taps) -> None:
        self._names, self._taps = names, taps

    def investigate(self, base: Evidence, microbatches: Sequence[Microbatch], **_: Any) -> Evidence:
        """Blame and its adjudication; no cure is searched."""
        return step_by_step.investigate(base, microbatches, self._traced)[0]

    def _traced(self, microbatch: Microbatch) -> step_by_step.TracedReplay:
        inputs = microbatch.inputs()
        known = {id(p.data): ("param", name) for name, p in self._names.parameters()}
        tracer = Tracer(self._names, known | {id(t.data): ("batch", f"[{i}]") for i, t in enumerate(inputs)})
        bad = self._bad(microbatch, tracer)
        targets = [bad[""]] if "" in bad else bad.values()
        return step_by_step.TracedReplay(
            tracer=tracer,
            has_bad_values="" in bad,
            bad_params=tuple(name for name in bad if name),
            blamed=lambda: blame([node.traced for node in tracer.nodes], map(tracer.edge, targets)),
            witness=lambda: Traced(tracer.nodes, tracer.leaves),
            inputs=inputs,
            is_finite_with=lambda rows: not self._bad(microbatch, Listener(self._names), rows),
        )

    def _bad(self, microbatch: Microbatch, listener: Listener, rows: Rows | None = None) -> dict[str, mn.Array]:
        """Do it again. What is not finite: "" -> the loss, name of a parameter -> its gradient."""
        made: dict[int, mn.Tensor] = {}

        def again(each: Any) -> Any:
            if isinstance(each, Made) and each in made:
                return made[each]
            if isinstance(each, Made):
                raise ReplayImpossible("it goes on from what was computed before another backward")
            if not isinstance(each, mn.Tensor) or isinstance(each, mn.Parameter):
                return each
            has_rows = rows is not None and each.shape[:1] == (rows[0],)  # the program's own tensor keeps its gradient
            return mn.Tensor(each.data[list(rows[1])] if has_rows else each.data, requires_grad=each.requires_grad)

        parameters = self._names.parameters()
        held = [parameter.grad for _, parameter in parameters]
        try:
            with self._taps.heard_by(listener):
                for _, parameter in parameters:
                    parameter.grad = None
                for event in microbatch.events:
                    listener.was, (args, kwargs) = event.place, mapped(event.given, again)
                    made.update(zip(event.made, things(event.run(*args, **kwargs), mn.Tensor), strict=True))
                if microbatch.root not in made:
                    raise ReplayImpossible("what led to the loss was not seen, or its inputs are larger than keep_mb")
                made[microbatch.root].backward()
            found = {"": made[microbatch.root].data, **{name: p.grad for name, p in parameters if p.grad is not None}}
            return {name: array for name, array in found.items() if not np.isfinite(array).all()}
        finally:
            for (_, parameter), gradient in zip(parameters, held, strict=True):
                parameter.grad = gradient
