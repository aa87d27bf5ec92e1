"""The op trace of one replayed micro-batch: which op read what from whom, and where values stopped being finite.

Data flow is followed by storage: every op that writes a storage becomes its last writer, every op that reads one gets
an edge from that writer. Views are not operations. For each edge and output it is known which kinds of non-finite
values there were *at that moment*, and whether infinities descend only from constants the program wrote (masks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hypocenter.optrace import (
    LITERAL_NEGINF,
    LITERAL_POSINF,
    NAN,
    NEGINF,
    POSINF,
    Edge,
    TracedOp,
    classify,
    is_transition,
)
from hypocenter.tap.collective_ops import is_collective, is_wrapped, operands, result_of
from hypocenter.tap.gradient_flow import GradientFlow
from hypocenter.tap.gradients import local
from hypocenter.tap.numerics import Numerics, capture_numerics
from hypocenter.tap.op_context import OpContext, OpPlace
from hypocenter.tap.op_tensors import read_by, storage_key, tensors_among
from hypocenter.tap.tree import replace_tensors

_SIGN_FLIPS = frozenset({"neg", "mul", "div", "sub", "rsub", "neg_", "mul_", "div_", "sub_"})
UNDEFINED = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_", "empty_permuted"}
)
CAPTURE_BYTES = 256 << 20  # per op: what adjudication and the bundle need
MAX_CAPTURES = 48


@dataclass(slots=True, kw_only=True)
class Node:
    """One op as it ran, with what adjudication needs of it (only where values stopped being finite)."""

    traced: TracedOp
    place: OpPlace
    func: Any = None
    args: Any = None  # captured, detached
    kwargs: Any = None
    outputs: tuple[torch.Tensor, ...] = ()
    positions: tuple[int, ...] = ()  # of these among all tensors that the op gave
    why_not_again: str = ""  # why it must not be executed again: something of what it was given is not here
    numerics: Numerics | None = None  # the settings it ran under
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    scalars: tuple[float, ...] = ()  # Python numbers among its arguments
    is_gradient: bool = False  # its results descend from what backward started from: a loss scale multiplies them


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Stands for an argument that was too large to keep."""

    n_bytes: int


@dataclass(slots=True)
class Leaf:
    """A tensor that was there before any traced op."""

    kind: str  # param, buffer, batch, external, constant
    name: str
    tensor: torch.Tensor | None
    bits: int


@dataclass(slots=True)
class _Written:
    edge: int  # producing op, or -1 - leaf
    bits: int
    keep: torch.Tensor | None = None  # holds a storage with bad values, so that its address is not used again


def nonfinite_bits(tensor: torch.Tensor) -> int:
    """Which kinds of non-finite values a tensor holds. One reduction if it is clean."""
    values = local(tensor)
    if values is None:
        return 0
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype.itemsize == 1:
        values = values.float()
    # sum of |x| in float32: non-finite if any element is, and rarely otherwise; then the exact answer is computed
    if torch.isfinite(torch.linalg.vector_norm(values, 2, dtype=_accumulator(values.dtype))):
        return 0
    return (
        NAN * bool(torch.isnan(values).any())
        | POSINF * bool(torch.isposinf(values).any())
        | NEGINF * bool(torch.isneginf(values).any())
    )


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class OpTracer(TorchDispatchMode):
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
        self._n_captures = 0
        self._captured: set[int] = set()  # storages of what is kept to execute ops again
        self._written: dict[int, _Written] = {}
        self._flow = GradientFlow()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions are run eagerly in a replay; nothing of ours may reach their tracing."""
        return True

    def restart(self) -> None:
        """Forget what was traced: the replay starts over."""
        self.nodes.clear()
        self.leaves.clear()
        self._written.clear()
        self._n_captures = 0
        self._captured.clear()
        self._flow.end()

    def starts_from(self, seeds: Sequence[torch.Tensor | None]) -> None:
        """Backward is about to be run, from these gradients; None: torch makes one."""
        self._flow.start(seeds)

    def keep_captured(self, storages: set[int]) -> None:
        """The values of these storages are about to be taken away: copy what is captured of them."""

        def kept(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if storage_key(tensor) in storages else tensor

        for node in self.nodes:
            if node.func is not None:
                node.args, node.kwargs = replace_tensors(node.args, kept), replace_tensors(node.kwargs, kept)
        for leaf in self.leaves:
            if leaf.tensor is not None:
                leaf.tensor = kept(leaf.tensor)

    def trace(self) -> tuple[TracedOp, ...]:
        """The ops as plain data, for the blame walk."""
        return tuple(node.traced for node in self.nodes)

    def edge_to(self, tensor: torch.Tensor) -> Edge:
        """Who made this tensor (of a DTensor, what is here of it), and what it holds."""
        return self._edge(getattr(tensor, "_local_tensor", tensor))

    def sent(self) -> list[Edge]:
        """Values that went to other ranks and were not finite."""
        return [edge for node in self.nodes if node.traced.is_collective for edge in node.traced.inputs if edge.real]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if is_wrapped(types):
            return NotImplemented  # we want what the wrapper does inside
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if is_collective(func):
            return self._collective(func, name, args, kwargs)
        read = read_by(args, kwargs)
        if name == "aten.lift_fresh.default":  # a constant made from Python numbers: its storage is new to us
            self._forget(read)
        edges = tuple(self._edge(t) for t in read)
        written = _written_arguments(func, args, kwargs)
        captured = self._before_write(written) if written and self._capture else {}
        if changed := self._captured.intersection(storage_key(t) for t in written):
            self.keep_captured(changed)
            self._captured -= changed
        out = func(*args, **kwargs)
        outputs = tuple(t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor))
        outputs = outputs or tuple(written)  # some that write in place return nothing
        if not written and _is_view(read, outputs):
            return out
        self._add(func, name, args, kwargs, read, edges, outputs, captured)
        return out

    def _collective(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """It is never kept to be executed again: one rank alone would wait for the others."""
        read = operands(func, args)
        edges = tuple(self._edge(tensor) for tensor in read)
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
        literal = _literal_bits(args, kwargs)
        bits = 0
        place = self.context.place(name)
        index = len(self.nodes)
        for tensor in outputs:
            now = 0 if base in UNDEFINED else nonfinite_bits(tensor)
            found = classify(now, edges, literal, flips_sign=base in _SIGN_FLIPS)
            bits |= found
            self._write(tensor, index, found)
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
        if func is not None and self._capture and is_transition(traced) and self._n_captures < MAX_CAPTURES:
            self._n_captures += 1
            self._keep(node, func, args, kwargs, captured, outputs)
        self.nodes.append(node)
        if self._observe is not None:
            self._observe(node, outputs)

    def _keep(
        self,
        node: Node,
        func: Any,
        args: Any,
        kwargs: Any,
        captured: dict[int, torch.Tensor | LeftOut],
        outputs: tuple[torch.Tensor, ...],
    ) -> None:
        """What is needed to execute it again."""
        node.func, node.numerics = func, capture_numerics()
        node.args, node.kwargs = _detached(args, captured), _detached(kwargs, captured)
        if (left_out := _largest_left_out((node.args, node.kwargs))) is not None:
            node.why_not_again = f"its inputs were not kept: one of them is too large ({left_out.n_bytes >> 20} MiB)"
        kept = [(i, t.detach().clone()) for i, t in enumerate(outputs) if _bytes(t) <= CAPTURE_BYTES]
        node.positions, node.outputs = tuple(i for i, _ in kept), tuple(t for _, t in kept)
        self._captured |= {storage_key(t) for t in tensors_among(node.args, node.kwargs)} - {0}

    def _edge(self, tensor: torch.Tensor) -> Edge:
        key = storage_key(tensor)
        written = self._written.get(key) if key else None
        if written is None:
            kind, name = self._leaf(tensor)
            bits = nonfinite_bits(tensor)
            is_mask = bits & NEGINF and not bits & (NAN | POSINF) and kind != "param" and key not in self._computed
            if is_mask:
                bits = bits & ~NEGINF | LITERAL_NEGINF  # an additive mask that came from outside
            self.leaves.append(Leaf(kind, name, tensor.detach() if bits else None, bits))
            written = _Written(-len(self.leaves), bits, tensor.detach() if bits else None)
            if key:
                self._written[key] = written
            return Edge(producer=written.edge, bits=bits)
        if not written.bits:
            return Edge(producer=written.edge, bits=0)
        now = nonfinite_bits(tensor)  # the part of the storage that this view shows
        bits = 0
        for kind, literal in ((POSINF, LITERAL_POSINF), (NEGINF, LITERAL_NEGINF)):
            if now & kind:
                bits |= written.bits & (kind | literal) or kind
        return Edge(producer=written.edge, bits=bits | now & NAN)

    def _write(self, tensor: torch.Tensor, index: int, bits: int) -> None:
        key = storage_key(tensor)
        if key:
            before = self._written.get(key)
            partial = before is not None and before.bits and tensor.numel() < _storage_elements(tensor)
            if before is not None and partial:
                bits |= before.bits  # the other part of the storage is as it was
            self._written[key] = _Written(index, bits, tensor.detach() if bits else None)

    def _forget(self, read: list[torch.Tensor]) -> None:
        for tensor in read:
            self._written.pop(storage_key(tensor), None)

    def _before_write(self, written: list[torch.Tensor]) -> dict[int, torch.Tensor | LeftOut]:
        return {
            id(t): t.detach().clone() if t.numel() == 0 or 0 < _bytes(t) <= CAPTURE_BYTES else LeftOut(_bytes(t))
            for t in written
        }


def _literal_bits(args: Any, kwargs: Any) -> int:
    """Infinite Python numbers among an op's arguments: full(..., -inf), masked_fill(..., -inf)."""
    bits = 0
    for value in (*args, *kwargs.values()):
        if isinstance(value, float) and math.isinf(value):
            bits |= LITERAL_POSINF if value > 0 else LITERAL_NEGINF
    return bits


def _written_arguments(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    if not func._schema.is_mutable:
        return []
    written: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
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


def _detached(value: Any, captured: dict[int, torch.Tensor | LeftOut]) -> Any:
    """The arguments as they were before the op ran, off the autograd graph; for what is too large a `LeftOut`."""
    if isinstance(value, torch.Tensor):
        kept = captured.get(id(value))
        if kept is not None:
            return kept
        return value.detach() if _bytes(value) <= CAPTURE_BYTES else LeftOut(_bytes(value))
    if isinstance(value, (list, tuple)):
        return type(value)(_detached(item, captured) for item in value)
    if isinstance(value, dict):
        return {key: _detached(item, captured) for key, item in value.items()}
    return value


def _largest_left_out(value: Any) -> LeftOut | None:
    if isinstance(value, LeftOut):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    found = [left_out for item in items if (left_out := _largest_left_out(item)) is not None]
    return max(found, key=lambda each: each.n_bytes, default=None)


def _storage_elements(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
