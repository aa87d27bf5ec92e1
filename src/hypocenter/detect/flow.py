"""Where values stopped being finite, found by following them through rows of calls whose inputs were recorded too.

Rows of a dump do not say which tensor went where. A value that is not finite is followed by what is known of it: the
number of its elements, which kinds of non-finite values it has, and its finite extremes and sum. A call whose inputs
are finite and whose output is not is an origin. One whose values all end at calls that give finite results (a mask in
a softmax) is to blame for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hypocenter.nouns import Reading

Key = tuple[str, str, str, int, int]
_LOOK = tuple[int, bool, bool, bool, float | None, float | None, float]
_BACKWARD = "backward"


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of a module or an API in one direction, with its rows."""

    key: Key
    ins: list[Reading] = field(default_factory=list[Reading])
    outs: list[Reading] = field(default_factory=list[Reading])

    @property
    def order(self) -> int:
        """The place in execution order at which the call ended."""
        return max(r.order for r in (*self.ins, *self.outs))

    @property
    def is_op(self) -> bool:
        """Whether it is a single API; in a dump without modules each is a site of its own."""
        return bool(self.key[2]) or not any(r.module for r in (*self.ins, *self.outs))

    @property
    def is_bad(self) -> bool:
        """Whether an output is not finite."""
        return any(is_bad(r) for r in self.outs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where bad values come from."""

    kind: Literal["call", "param", "input"]
    reading: Reading  # the first bad output; of a leaf the bad value itself
    call: Call
    n_others: int = 0  # further origins of what was watched
    is_watched: bool = True  # the loss, or a gradient, descends from it


@dataclass(slots=True)
class _Node:
    """A call with bad outputs, or a leaf, in the graph of bad values."""

    origin: Origin
    from_: list[_Node] = field(default_factory=list)
    to: list[_Node] = field(default_factory=list)
    n_killed: int = 0  # calls that took its values and gave finite ones
    is_watched: bool = False


def is_bad(reading: Reading) -> bool:
    """Return whether it holds values that are not finite."""
    return reading.summary.n_nonfinite > 0 and not reading.literal_inf


def has_flow(readings: Iterable[Reading]) -> bool:
    """Return whether inputs of single calls were recorded, as in dumps of other tools: our own ops have outputs
    only."""
    return any(r.lacks or (r.op and r.phase == "forward" and r.port.startswith("in[")) for r in readings)


def bad_results(readings: Iterable[Reading]) -> list[Reading]:
    """Return outputs of the model that are not finite, in a step that has neither a loss nor gradients."""
    rows = list(readings)
    if any((r.phase == "loss" and r.port == "value") or r.phase == "grad" for r in rows):
        return []
    given = [r for r in rows if r.phase == "forward" and not (r.site or r.op) and r.port.startswith("out")]
    return [r for r in given if is_bad(r)]


def origin_of(readings: Sequence[Reading], *, microbatch: int | None = None) -> Origin | None:
    """Return the first origin of a bad loss, else of bad gradients; None when nothing bad lives on.

    Args:
        readings: of one step of one rank.
        microbatch: of only this one; of all when not given.
    """
    rows = [r for r in readings if not (r.replay or r.recompute) and microbatch in (None, r.microbatch)]
    forward = _graph([r for r in rows if r.phase in ("forward", "loss")], rows)
    watched = [r for r in rows if r.phase == "loss" and r.port == "value" and is_bad(r)]
    if watched:
        return _first(_descended(forward, watched) or _alive(forward, kinds=("call", "param", "input")))
    if given := bad_results(rows):
        return _first(_descended(forward, given))
    has_gradients = any(r.phase == "grad" for r in rows)
    if has_gradients and not any(r.phase == "grad" and is_bad(r) for r in rows):
        return None
    has_loss = any(r.phase == "loss" and r.port == "value" for r in rows)
    in_forward = [] if has_loss or not has_gradients else _alive(forward, kinds=("call", "param", "input"))
    backward = _graph([r for r in rows if r.phase == _BACKWARD], ())
    return _first(in_forward) or _first(_alive(backward, kinds=("call",)))


def origin_in_update(readings: Sequence[Reading]) -> Origin | None:
    """Return the first API of the optimizer that made bad values from finite ones; None if none did."""
    return _first(_alive(_graph([r for r in readings if r.phase == "optimizer" and r.op], ()), kinds=("call",)))


def calls_of(rows: Iterable[Reading]) -> list[Call]:
    """Group rows by call, in the order in which the calls ended."""
    found: dict[Key, Call] = {}
    for row in rows:
        key = row.phase, row.site, row.op, row.microbatch, row.call
        call = found.setdefault(key, Call(key=key))
        is_in = row.port.startswith(("grad_out", "in[") if row.phase == _BACKWARD else "in[")
        (call.ins if is_in else call.outs).append(row)
    return sorted(found.values(), key=lambda call: call.order)


def _graph(rows: Sequence[Reading], every: Sequence[Reading]) -> list[_Node]:
    """Return nodes for everything bad in one direction, in execution order."""
    bad_params = [r for r in every if r.phase == "param" and is_bad(r)]
    params = {_look(r): r for r in bad_params}
    nodes: list[_Node] = []
    exact: dict[_LOOK, _Node] = {}
    loose: dict[tuple[int, bool, bool, bool], _Node] = {}
    veiled: list[_Node] = []  # whose values went into results that are not known
    for call in calls_of([r for r in rows if r.port != "value"]):
        bad = [r for r in call.outs if is_bad(r)]
        if not call.is_op and bad and all(_look(r) in exact for r in bad):
            continue  # a module gives what a call inside it gave
        before = list[_Node]()
        for row in call.ins:
            if is_bad(row):
                look = _look(row)
                node = exact.get(look)
                if node is None and look in params:
                    node = _leaf("param", params[look], call)
                node = node or loose.get(look[:4]) or (nodes[-1] if nodes else _leaf("input", row, call))
                if node.origin.kind != "call" and node not in nodes:
                    nodes.append(node)
                    exact[look] = node
                before.append(node)
        if not before and any(_is_unknown(r) for r in call.ins):
            before = list(veiled)
        if not bad and any(_is_unknown(r) for r in call.outs):
            veiled += [node for node in before if all(node is not other for other in veiled)]
            continue
        if not bad:
            for node in before:
                node.n_killed += 1
            continue
        own = None if before else next((r for r in bad_params if r.site.rpartition(".")[0] == call.key[1]), None)
        if own is not None and not (call.is_op and call.key[2]):  # a module's parameters are not among its inputs
            before = [_leaf("param", own, call)]
            nodes += before
        here = _Node(Origin(kind="call", reading=bad[0], call=call), from_=before)
        for node in before:
            node.to.append(here)
        nodes.append(here)
        for row in bad:
            exact[_look(row)] = here
            loose[_look(row)[:4]] = here
    return nodes


def _is_unknown(reading: Reading) -> bool:
    """Return whether there may be values that are not finite, of which the dump says nothing."""
    return not reading.summary.n_nonfinite and "counts" in reading.lacks.split()


def _leaf(kind: Literal["param", "input"], reading: Reading, call: Call) -> _Node:
    return _Node(Origin(kind=kind, reading=reading, call=call))


def _look(reading: Reading) -> _LOOK:
    s = reading.summary
    return s.n, s.n_nan > 0, s.n_posinf > 0, s.n_neginf > 0, s.min, s.max, s.sum


def _descended(nodes: Sequence[_Node], watched: Sequence[Reading]) -> list[_Node]:
    """Return the origins of what is watched."""
    looks = {_look(row) for row in watched}
    stack = [n for n in nodes if n.origin.kind == "call" and looks & {_look(r) for r in n.origin.call.outs}]
    seen, found = set[int](), list[_Node]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.from_:
            stack += node.from_
        else:
            node.is_watched = True
            found.append(node)
    return found


def _alive(nodes: Sequence[_Node], *, kinds: tuple[str, ...]) -> list[_Node]:
    """Return the origins of which something is left: a value that no call has turned into finite ones."""
    dead = set[int]()
    for node in reversed(nodes):
        is_taken = bool(node.to) or node.n_killed > 0
        if is_taken and all(id(other) in dead for other in node.to):
            dead.add(id(node))
    return [n for n in nodes if not n.from_ and id(n) not in dead and n.origin.kind in kinds]


def _first(found: Sequence[_Node]) -> Origin | None:
    if not found:
        return None
    first = min(found, key=lambda n: (n.origin.kind == "call", n.origin.reading.order))
    origin = first.origin
    return Origin(
        kind=origin.kind, reading=origin.reading, call=origin.call, n_others=len(found) - 1,
        is_watched=first.is_watched,
    )  # fmt: skip
