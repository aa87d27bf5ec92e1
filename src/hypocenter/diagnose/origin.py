"""Blame by reachability: from a bad loss or gradient back through its producers to where values stopped being finite.

Pure: works on the plain op trace of one replayed micro-batch. An op is blamed when its inputs held no non-finite value
that is not a constant of the program (a mask), its output did, *and* the watched value descends from it. Values that
were killed on the way (where, a mask, softmax of -inf) are therefore never blamed; they are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypocenter.optrace import NAN, NEGINF, POSINF, Edge, TracedOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The ops at which the watched values stopped being finite."""

    origin: int | None = None  # index of the op
    leaf: int | None = None  # or: the bad value was in this leaf before any op
    path: tuple[int, ...] = ()  # ops from the origin to the watched value
    nan_maker: int | None = None  # where an infinity on the path became NaN
    zero_factor: int | None = None  # a product on the path that multiplied the bad values by exactly 0
    killed: tuple[int, ...] = ()  # other ops that made non-finite values from finite ones
    others: tuple[int, ...] = ()  # further origins of the watched values, later than the first


def blame(trace: Sequence[TracedOp], targets: Iterable[Edge]) -> Blame | None:
    """Walk back from the targets (the loss, or parameter gradients) along non-finite inputs.

    Returns None when no target holds a non-finite value that is not a constant.
    """
    child: dict[int, int | None] = {}
    stack: list[int] = []
    for edge in targets:
        if edge.real and edge.producer not in child:
            child[edge.producer] = None
            stack.append(edge.producer)
    if not stack:
        return None
    origins: list[int] = []
    while stack:
        here = stack.pop()
        followed = _causes(trace[here]) if here >= 0 else ()
        if not followed:
            origins.append(here)
        for edge in followed:
            if edge.producer not in child:
                child[edge.producer] = here
                stack.append(edge.producer)
    leaves, ops = sorted((o for o in origins if o < 0), reverse=True), sorted(o for o in origins if o >= 0)
    first = leaves[0] if leaves else ops[0]
    path = _path(first, child)
    return Blame(
        origin=first if first >= 0 else None,
        leaf=-1 - first if first < 0 else None,
        path=path,
        nan_maker=next((i for i in path if trace[i].bits & NAN and not trace[i].incoming & NAN), None),
        zero_factor=next((i for i in path if trace[i].zero_factor), None),
        killed=tuple(op.index for op in trace if op.real and not op.incoming and op.index not in child),
        others=tuple(o for o in ops if o != first),
    )


def _causes(op: TracedOp) -> tuple[Edge, ...]:
    """Return the inputs that explain an op's non-finite output: NaN ones if there are any, else infinite ones."""
    if op.bits & NAN:
        nan = tuple(e for e in op.inputs if e.bits & NAN)
        if nan:
            return nan
    return tuple(e for e in op.inputs if e.real)


def _path(origin: int, child: dict[int, int | None]) -> tuple[int, ...]:
    path: list[int] = []
    here: int | None = origin
    while here is not None:
        if here >= 0:
            path.append(here)
        here = child[here]
    return tuple(path)


_ZEROING = frozenset({"rsqrt", "reciprocal", "div", "true_divide"})
_KILLERS = _ZEROING | {
    "where", "masked_fill", "masked_select", "index", "nan_to_num", "clamp", "minimum", "maximum", "isfinite",
    "lt", "le", "gt", "ge", "logical_and", "tanh", "sigmoid", "hardtanh",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """Infinities that finite inputs made and a later op hid."""

    origin: int
    killer: int
    zeroed: bool  # hidden by becoming exact zeros (x / inf), not by being masked


def killed_infinities(trace: Sequence[TracedOp]) -> tuple[Killed, ...]:
    """Return ops that made infinities of finite inputs, each with the first op downstream that hid them.

    Softmax of -inf, exp(-inf) and the like are how masks work and are not in the list of killers.
    """
    producers = {op.index for op in trace if op.real & (POSINF | NEGINF) and not op.incoming and not op.real & NAN}
    source: dict[int, int] = {index: index for index in producers}
    found: dict[int, Killed] = {}
    for op in trace:
        if op.phase not in ("forward", "loss"):
            continue
        reads = [source[e.producer] for e in op.inputs if e.real and e.producer in source]
        if not reads or op.index in producers:
            continue
        if op.real:
            source[op.index] = min(reads)
            continue
        base = op.op.split(".")[1].rstrip("_") if "." in op.op else op.op
        if base in _KILLERS and min(reads) not in found:
            found[min(reads)] = Killed(origin=min(reads), killer=op.index, zeroed=base in _ZEROING)
    return tuple(found[index] for index in sorted(found))


def selector_of(trace: Sequence[TracedOp], producer: int) -> int | None:
    """Return the first forward op that read bad values from a producer (an op, or -1 - leaf) and gave none."""
    tainted = {producer}
    for op in trace:
        if op.phase not in ("forward", "loss") or not any(e.real and e.producer in tainted for e in op.inputs):
            continue
        if not op.real:
            return op.index
        tainted.add(op.index)
    return None
