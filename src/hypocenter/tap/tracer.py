"""The op trace of one replayed micro-batch: which op read what from whom, and where values stopped being finite.

Data flow is followed by storage: every op that writes a storage becomes its last writer, every op that reads one gets
an edge from that writer. Views are not operations. For each edge and output it is known which kinds of non-finite
values there were *at that moment*, and whether infinities descend only from constants the program wrote (masks).
Kernels that the dispatcher does not show (Triton's, those of extensions) write as well: where bad values appear, what
was read is looked at, and what no traced op has put there gets a node of its own.

Storages are held weakly: only what is kept of the few ops where values stopped being finite takes memory.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

import torch

from hypocenter.optrace import (
    LITERAL_NEGINF,
    LITERAL_POSINF,
    NAN,
    NEGINF,
    POSINF,
    UNSEEN,
    Edge,
    TracedOp,
    appears,
    classify,
    is_transition,
)
from hypocenter.tap.at_hand import AtHand
from hypocenter.tap.collective_ops import is_collective, is_wrapped, operands, result_of
from hypocenter.tap.dispatch import Mode, declared, is_mutable, name_of
from hypocenter.tap.gradient_flow import GradientFlow
from hypocenter.tap.kept_arguments import CAPTURE_BYTES, LeftOut, before_write, detached, largest_left_out, n_bytes
from hypocenter.tap.nodes import Leaf, Node, Unseen, nonfinite_bits
from hypocenter.tap.numerics import capture_numerics
from hypocenter.tap.op_context import OpContext, OpPlace
from hypocenter.tap.op_tensors import read_by, storage_key, tensors_among
from hypocenter.tap.storages import UNDEFINED, Storages
from hypocenter.tap.tree import replace_tensors

_SIGN_FLIPS = frozenset({"neg", "mul", "div", "sub", "rsub", "neg_", "mul_", "div_", "sub_"})
MAX_CAPTURES = 48
MAX_CAPTURED_BYTES = 2 << 30  # of all of them


class OpTracer(Mode):
    """Traces every op of a replay. `leaf` names tensors from outside: tensor -> (kind, name)."""

    def __init__(
        self,
        context: OpContext,
        leaf: Callable[[torch.Tensor], tuple[str, str]],
        *,
        observe: Callable[[Node, Sequence[torch.Tensor]], None] | None = None,
        capture: bool = True,
        computed: Set[int] = frozenset(),
    ) -> None:
        super().__init__()
        self.context = context
        self.nodes: list[Node] = []
        self.leaves: list[Leaf] = []
        self._leaf = leaf
        self._observe = observe
        self._capture = capture
        self._computed = computed  # storages from outside whose negative infinities are no mask
        self._n_captures = self._n_captured_bytes = 0
        self._captured: set[int] = set()  # storages of what is kept to execute ops again
        self._storages = Storages()
        self._bits: dict[int, int] = {}  # of storages that hold something that is not finite
        self._at_hand = AtHand()
        self._flow = GradientFlow()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled regions run eagerly in a replay, and nothing of ours may reach their tracing."""
        return True

    def restart(self) -> None:
        """Forget what was traced: the replay starts over."""
        self.nodes.clear()
        self.leaves.clear()
        self._storages, self._bits, self._at_hand = Storages(), {}, AtHand()
        self._n_captures = self._n_captured_bytes = 0
        self._captured.clear()
        self._flow.end()

    def starts_from(self, seeds: Sequence[torch.Tensor | None]) -> None:
        """Begin to follow backward, which starts from these gradients (None where torch makes one)."""
        self._flow.start(seeds)

    def keep_captured(self, storages: set[int]) -> None:
        """Copy what is captured of these storages, as their values are about to be taken away."""

        def kept(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if storage_key(tensor) in storages else tensor

        for node in self.nodes:
            if node.func is not None:
                node.args, node.kwargs = replace_tensors(node.args, kept), replace_tensors(node.kwargs, kept)
        for leaf in self.leaves:
            if leaf.tensor is not None:
                leaf.tensor = kept(leaf.tensor)

    def trace(self) -> tuple[TracedOp, ...]:
        """Return the ops as plain data, for the blame walk."""
        return tuple(node.traced for node in self.nodes)

    def edge_to(self, tensor: torch.Tensor) -> Edge:
        """Return who made this tensor (of a DTensor, what is here of it), and what it holds."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        return self._looked_at(tensor, self._edge(tensor), tensor, None, "the result")

    def sent(self) -> list[Edge]:
        """Return the values that went to other ranks and were not finite."""
        return [edge for node in self.nodes if node.traced.is_collective for edge in node.traced.inputs if edge.real]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if is_wrapped(types):
            return NotImplemented  # we want what the wrapper does inside
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if is_collective(func):
            return self._collective(func, name, args, kwargs)
        read = read_by(args, kwargs)
        if name == "aten.lift_fresh.default":  # a constant made from Python numbers: its storage is new to us
            for tensor in read:
                self._storages.forget(tensor)
        edges = tuple(self._edge(t) for t in read)
        written = written_arguments(func, args, kwargs)
        captured = before_write(written) if written and self._capture else {}
        if changed := self._captured.intersection(storage_key(t) for t in written):
            self.keep_captured(changed)
            self._captured -= changed
        out = func(*args, **kwargs)
        outputs = tuple(t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor))
        outputs = outputs or tuple(written)  # some that write in place return nothing
        if not written and _is_view(read, outputs):
            self.context.place(name)  # of a Function that begins with it the backward belongs here
            return out
        self._add(func, name, args, kwargs, read, edges, outputs, captured)
        return out

    def _collective(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Run a collective and trace it. It is not kept for a replay, in which one rank would wait for the others."""
        read = operands(func, args)
        place = self.context.place(name)
        edges = tuple(self._looked_at(tensor, self._edge(tensor), tensor, place, name) for tensor in read)
        out = func(*args, **kwargs)
        outputs = tuple(result_of(func, args, out))
        self._add(None, name, args, kwargs, read, edges, outputs, {})
        node = self.nodes[-1]
        node.traced = replace(node.traced, is_collective=True)
        return out

    def _add(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        read: list[torch.Tensor],
        edges: tuple[Edge, ...],
        outputs: tuple[torch.Tensor, ...],
        captured: dict[int, torch.Tensor | LeftOut],
    ) -> None:
        base = name.split(".")[1] if "." in name else name
        literal, is_room = _literal_bits(args, kwargs), base in UNDEFINED
        held = [0 if is_room else nonfinite_bits(tensor) for tensor in outputs]

        def kinds() -> list[int]:
            return [classify(now, edges, literal, flips_sign=base in _SIGN_FLIPS) for now in held]

        place, found = self.context.place(name), kinds()
        if appears(found, edges):
            edges = self._look(read, edges, captured, outputs, place, name)
            found = kinds()
        bits, index = functools.reduce(operator.or_, found, 0), len(self.nodes)
        for tensor, now in zip(outputs, found, strict=True):
            self._write(tensor, index, now, is_room=is_room)
        if is_room:
            self._at_hand.note(outputs, self._known)
        traced = TracedOp(
            index=index,
            op=name,
            phase=place.phase,
            bits=bits,
            inputs=edges,
            zero_factor=bool(bits & NAN) and base in ("mul", "mul_") and _other_factor_is_zero(read, edges, outputs),
            node=place.node,
        )
        node = Node(
            traced=traced,
            place=place,
            shapes=tuple(tuple(t.shape) for t in outputs),
            dtypes=tuple(str(t.dtype).removeprefix("torch.") for t in outputs),
            scalars=tuple(v for v in (*args, *kwargs.values()) if isinstance(v, (int, float))),
            is_gradient=self._flow.note(base, read, outputs) and place.phase == "backward",
        )
        is_kept = self.is_kept(node, read, outputs)
        if is_kept and func is not None and self._capture and self._has_room():
            self._n_captures += 1
            self._keep(node, func, args, kwargs, captured, outputs)
        self.nodes.append(node)
        if self._observe is not None:
            self._observe(node, outputs)
        self.after_op(base, outputs)

    def is_kept(self, node: Node, read: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Return whether what is needed to execute an op again is to be kept, if there is room."""
        return is_transition(node.traced)

    def after_op(self, base: str, outputs: Sequence[torch.Tensor]) -> None:
        """Do nothing; subclasses hear of each traced op here, by its name without namespace and overload."""

    def met_unseen(self, tensor: torch.Tensor) -> None:
        """Do nothing; subclasses hear here of a tensor that is read and that no traced op has written."""

    def _has_room(self) -> bool:
        return self._n_captures < MAX_CAPTURES and self._n_captured_bytes < MAX_CAPTURED_BYTES

    def _keep(
        self,
        node: Node,
        func: Any,
        args: Any,
        kwargs: Any,
        captured: dict[int, torch.Tensor | LeftOut],
        outputs: tuple[torch.Tensor, ...],
    ) -> None:
        """Keep what is needed to execute the op again."""
        node.func, node.numerics = func, capture_numerics()
        node.args, node.kwargs = detached(args, captured), detached(kwargs, captured)
        if (left_out := largest_left_out((node.args, node.kwargs))) is not None:
            node.why_not_again = f"its inputs were not kept: one of them is too large ({left_out.n_bytes >> 20} MiB)"
        kept = [(i, t.detach().clone()) for i, t in enumerate(outputs) if n_bytes(t) <= CAPTURE_BYTES]
        node.positions, node.outputs = tuple(i for i, _ in kept), tuple(t for _, t in kept)
        self._n_captured_bytes += sum(n_bytes(t) for t in tensors_among(node.args, node.kwargs, node.outputs))
        self._captured |= {storage_key(t) for t in tensors_among(node.args, node.kwargs)} - {0}

    def _edge(self, tensor: torch.Tensor) -> Edge:
        if not self._storages.knows(tensor):
            return self._from_outside(tensor)
        producer, before = self._storages.read(tensor)[0], self._bits.get(storage_key(tensor), 0)
        if not before:
            return Edge(producer=producer, bits=0)
        now = nonfinite_bits(tensor)  # the part of the storage that this view shows
        bits = 0
        for kind, literal in ((POSINF, LITERAL_POSINF), (NEGINF, LITERAL_NEGINF)):
            if now & kind:
                bits |= before & (kind | literal) or kind
        return Edge(producer=producer, bits=bits | now & NAN)

    def _from_outside(self, tensor: torch.Tensor) -> Edge:
        key = storage_key(tensor)
        kind, name = self._leaf(tensor)
        bits = nonfinite_bits(tensor)
        is_mask = bits & NEGINF and not bits & (NAN | POSINF) and kind != "param" and key not in self._computed
        if is_mask:
            bits = bits & ~NEGINF | LITERAL_NEGINF  # an additive mask that came from outside
        is_whole = tensor.numel() >= _storage_elements(tensor) if key else True
        kept = tensor.detach() if bits else None
        self.leaves.append(Leaf(kind, name, kept, bits, is_whole, asks_for_gradient=tensor.requires_grad))
        self._note(tensor, -len(self.leaves), bits)
        return Edge(producer=-len(self.leaves), bits=bits)

    def _look(
        self,
        read: list[torch.Tensor],
        edges: tuple[Edge, ...],
        captured: dict[int, torch.Tensor | LeftOut],
        outputs: tuple[torch.Tensor, ...],
        place: OpPlace,
        name: str,
    ) -> tuple[Edge, ...]:
        """Look at what an op has read that made something bad of good values: was it as good as the trace knows?"""
        changed = {storage_key(tensor) for tensor in outputs}
        found: list[Edge] = []
        for tensor, edge in zip(read, edges, strict=True):
            value = captured.get(id(tensor), None if storage_key(tensor) in changed else tensor)
            found.append(
                edge if not isinstance(value, torch.Tensor) else self._looked_at(tensor, edge, value, place, name)
            )
        return tuple(found)

    def _looked_at(
        self, tensor: torch.Tensor, edge: Edge, value: torch.Tensor, place: OpPlace | None, name: str
    ) -> Edge:
        """Return the edge of what an op reads after a look at it, as something untraced may have written it.

        Args:
            value: the values that it had then.
            place: of the op; None: where the trace ends.
        """
        if edge.real or not self._storages.knows(tensor):
            return edge
        now = nonfinite_bits(value)
        for kind, literal in ((POSINF, LITERAL_POSINF), (NEGINF, LITERAL_NEGINF)):
            now &= ~kind if edge.bits & literal else ~0
        if now == NEGINF:  # an additive mask that was written otherwise
            self._note(tensor, edge.producer, edge.bits | LITERAL_NEGINF)
            return Edge(producer=edge.producer, bits=edge.bits | LITERAL_NEGINF)
        leaf = self.leaves[-1 - edge.producer] if now and edge.producer < 0 else None
        if leaf is not None and not leaf.is_whole:  # another part of it was read before
            leaf.tensor, leaf.bits = value.detach(), leaf.bits | now
            self._note(tensor, edge.producer, leaf.bits)
            return Edge(producer=edge.producer, bits=now)
        return self._unseen(tensor, edge, value, now, place, name) if now else edge

    def _unseen(
        self, tensor: torch.Tensor, edge: Edge, value: torch.Tensor, bits: int, place: OpPlace | None, name: str
    ) -> Edge:
        """Add a node for what has written this untraced; its inputs are the bad tensors that were at hand."""
        self.met_unseen(tensor)
        writer = self.nodes[edge.producer] if edge.producer >= 0 else None
        where = writer.place if writer is not None else place or self.nodes[-1].place
        at_hand = self._at_hand.of(tensor, self._known, self._edge)
        index = len(self.nodes)
        traced = TracedOp(index=index, op=UNSEEN, phase=where.phase, bits=bits, inputs=tuple(at_hand), node=where.node)
        self.nodes.append(
            Node(
                traced=traced, place=where, unseen=Unseen(edge.producer if writer is not None else -1, name),
                why_not_again="the dispatcher did not show it",
                outputs=(value.detach().clone(),) if n_bytes(value) <= CAPTURE_BYTES else (), positions=(0,),
                shapes=(tuple(value.shape),), dtypes=(str(value.dtype).removeprefix("torch."),),
            )
        )  # fmt: skip
        self._write(tensor, index, bits)
        return Edge(producer=index, bits=bits)

    def _known(self, tensor: torch.Tensor) -> Edge | None:
        """Return what is known of a tensor without a look; None if nothing is."""
        if not self._storages.knows(tensor):
            return None
        return Edge(producer=self._storages.read(tensor)[0], bits=self._bits.get(storage_key(tensor), 0))

    def _write(self, tensor: torch.Tensor, index: int, bits: int, *, is_room: bool = False) -> None:
        if not storage_key(tensor):
            return
        before = self._bits.get(storage_key(tensor), 0) if self._storages.knows(tensor) else 0
        if before and tensor.numel() < _storage_elements(tensor):
            bits |= before  # the other part of the storage is as it was
        self._note(tensor, index, bits, is_room=is_room)

    def _note(self, tensor: torch.Tensor, producer: int, bits: int, *, is_room: bool = False) -> None:
        key = storage_key(tensor)
        if not key:
            return
        self._storages.write(tensor, producer, undefined=is_room)
        if bits:
            self._bits[key] = bits
        else:
            self._bits.pop(key, None)


def _literal_bits(args: Any, kwargs: Any) -> int:
    """Return which infinite Python numbers an op is given: full(..., -inf), masked_fill(..., -inf)."""
    bits = 0
    for value in (*args, *kwargs.values()):
        if isinstance(value, float) and math.isinf(value):
            bits |= LITERAL_POSINF if value > 0 else LITERAL_NEGINF
    return bits


def written_arguments(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that an operator's schema says it writes to."""
    if not is_mutable(func):
        return []
    written: list[torch.Tensor] = []
    for position, argument in enumerate(declared(func)):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            written.extend(tensors_among(value))
    return written


def _is_view(read: list[torch.Tensor], outputs: tuple[torch.Tensor, ...]) -> bool:
    keys = {storage_key(t) for t in read} - {0}
    return bool(outputs) and all(storage_key(t) in keys for t in outputs)


def _other_factor_is_zero(read: list[torch.Tensor], edges: tuple[Edge, ...], outputs: tuple[torch.Tensor, ...]) -> bool:
    if len(read) != 2 or len(outputs) != 1 or bool(edges[0].real) == bool(edges[1].real):
        return False
    other = read[1] if edges[0].real else read[0]
    bad = torch.isnan(outputs[0])
    return bool((other.expand_as(outputs[0])[bad] == 0).all())


def _storage_elements(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
