"""How values flow through a graph of MindSpore: what enters and leaves cells, which operand is a gradient, of what."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hypocenter.importing.mindspore_graph import Graph, GraphParameter, Node
from hypocenter.importing.mindspore_names import Scope, flat, number_of, scope_of, site_of, stem_of
from hypocenter.importing.mindspore_twins import Places, places_of
from hypocenter.nouns import Source

_PASSES = frozenset({"Load", "Depend", "TupleGetItem", "StopGradient"})  # the first operand is the value
_GATHERS = frozenset({"MakeTuple", "MakeList"})
_WRITES = frozenset({"Assign", "AssignAdd", "AssignSub"})
_LEFT_OUT = frozenset({"UpdateState", "Return", "Partial", "Switch", "Call"})
_DEEPEST = 64
_EXPANDED = re.compile("_[A-Z]")  # of operators that were put in place of one: `Expand/_SumExt`; no cell
_MOST_RESULTS = 64
# Place of the gradient among the operands of operators that do not name them; mindspore.ops, 2.x.
_GRADIENTS = {
    "SGD": 1, "ApplyMomentum": 3, "Momentum": 3, "Adam": 9, "FusedSparseAdam": 9, "AdamWeightDecay": 8,
    "FusedAdam": 9, "FusedAdamWeightDecay": 9, "AdamW": 11, "ApplyAdamWithAmsgrad": 7, "ApplyRMSProp": 4,
    "ApplyAdagrad": 3, "ApplyGradientDescent": 2, "Lamb": 9,
}  # fmt: skip
_RATES = {
    "SGD": 2, "ApplyMomentum": 2, "Momentum": 2, "Adam": 5, "AdamWeightDecay": 3, "FusedAdamWeightDecay": 3, "AdamW": 6,
}  # fmt: skip
_COUNTERS = frozenset({
    "global_step", "learning_rate", "momentum", "beta1_power", "beta2_power", "current_iterator_step",
    "last_overflow_iterator_step", "scale_sense",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """Where the value of a cell's input or output was dumped."""

    node: Node
    is_input: bool
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell with its one input and its one output; None where there is none or more than one."""

    site: str
    kind: str
    entry: Tap | None
    leave: Tap | None


class Flow:
    """Answers questions about a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = {flat(p.name): p for p in graph.parameters.values()}
        self._forward: dict[str, Node] = {}
        for node in graph.nodes.values():
            if node.identity and not node.identity_of_forward and not node.is_of_backward:
                self._forward.setdefault(node.identity, node)

    @cached_property
    def weights(self) -> dict[str, GraphParameter]:
        """The parameters of the network and of its optimizer, by name."""
        return {p.name: p for p in self.graph.parameters.values() if p.is_weight}

    @cached_property
    def operators(self) -> list[Node]:
        """The nodes that compute something."""
        return [
            n for n in self.graph.nodes.values()
            if n.full_name and n.op not in _PASSES | _GATHERS | _LEFT_OUT
        ]  # fmt: skip

    def scope(self, node: Node) -> Scope:
        """Return where an operator stands; in backward it is that of the operator of forward that it belongs to."""
        own = self._own_scope(node)
        if node.op in _GRADIENTS and self.updated(node) is not None:  # of a function that is compiled: without a cell
            return Scope(kind="optimizer", cells=own.cells)
        if own.kind == "optimizer" or not (own.kind == "backward" or node.is_of_backward):
            return own
        forward = self.forward_of(node)
        return Scope(kind="backward", cells=self._own_scope(forward).cells if forward is not None else own.cells)

    def forward_of(self, node: Node) -> Node | None:
        """Return the operator whose gradient an operator computes, where the graph says it; else None."""
        if id(node) in self._forward_of_twins:
            return self._forward_of_twins[id(node)]
        return self._forward.get(node.identity_of_forward) if node.identity_of_forward else None

    def _own_scope(self, node: Node) -> Scope:
        named = scope_of(node.full_name)
        place = self._places.cells.get(id(node))
        return named if place is None else replace(named, cells=place)

    def source(self, node: Node) -> Source | None:
        """Return the line of code of an operator; None where the graph may have another one's."""
        return None if id(node) in self._places.unsure else node.source

    @cached_property
    def _places(self) -> Places:
        """The places of operators whose names tell another place than their own."""
        named = [(node, scope_of(node.full_name)) for node in self.operators if not node.is_of_backward]
        forward = [(node, scope) for node, scope in named if scope.kind in ("forward", "loss") and not scope.recompute]
        paths = {id(node): scope.cells for node, scope in forward}
        return places_of([node for node, _ in forward], paths, self._given, self._users)

    def _given(self, node: Node) -> list[Node]:
        return [source for source in self._sources(node) if isinstance(source, Node)]

    @cached_property
    def _forward_of_twins(self) -> dict[int, Node]:
        """For operators of backward whose forward ran at several places: which one; backward runs in reverse."""
        ran: dict[str, list[Node]] = defaultdict(list)
        for node in self.operators:
            if id(node) in self._places.cells and node.identity:
                ran[node.identity].append(node)
        back: dict[tuple[str, str], list[Node]] = defaultdict(list)
        for node in self.operators:
            if node.identity_of_forward in ran:
                back[node.op, node.identity_of_forward].append(node)
        found: dict[int, Node] = {}
        for (_, identity), nodes in back.items():
            forward = ran[identity]
            each, rest = divmod(len(nodes), len(forward))
            for i, node in enumerate(nodes if not rest else ()):
                found[id(node)] = forward[-1 - i // each]
        return found

    def candidates(self, names: Iterable[tuple[str, str]]) -> list[dict[tuple[str, str], Node]]:
        """Return ways in which names of files (type, name) may belong to operators, the most likely first.

        MindSpore 2.10 counts operators of one type and scope anew, in the order of the graph, before it dumps them, so
        that the numbers in names of files are other ones than in the graph. Where there are as many of both they are
        taken in order; else, and as the second way, by their numbers.
        """
        files: dict[tuple[str, str], list[str]] = defaultdict(list)
        nodes: dict[tuple[str, str], list[Node]] = defaultdict(list)
        for op_type, name in names:
            files[op_type, stem_of(name)].append(name)
        for node in self.operators:
            nodes[node.op, stem_of(flat(node.full_name))].append(node)
        in_order: dict[tuple[str, str], Node] = {}
        by_number: dict[tuple[str, str], Node] = {}
        for (op_type, stem), of_stem in files.items():
            ours = sorted(nodes.get((op_type, stem), []), key=lambda n: n.index)
            exact = {flat(node.full_name): node for node in ours}
            told = {(op_type, name): exact[name] for name in of_stem if name in exact}
            by_number.update(told)
            if len(of_stem) == len(ours):
                in_order.update(
                    {(op_type, n): node for n, node in zip(sorted(of_stem, key=number_of), ours, strict=True)}
                )
            else:
                in_order.update(told)
        return [in_order, by_number]

    def sources(self, node: Node) -> Iterator[tuple[int, Node, int]]:
        """Yield operands that other operators computed: the operand's place, the operator and its output's number."""
        for slot, operand in enumerate(node.operands):
            source = self._source(node.graph, operand)
            if isinstance(source, Node) and source.full_name:
                output = self._output(node.graph, operand)
                if output is not None:
                    yield slot, source, output

    def _output(self, graph: str, operand: str) -> int | None:
        """Return which output of an operator an operand is; None when it is a part of a part."""
        parts: list[int] = []
        for _ in range(_DEEPEST):
            node = self.graph.nodes.get((graph, operand))
            if node is None or node.op not in _PASSES or not node.operands:
                break
            if node.op == "TupleGetItem":
                number = re.fullmatch(r"I64\((\d{1,6})\)", "".join(node.operands[1:2]))
                if number is None:
                    return None
                parts.append(int(number[1]))
            operand = node.operands[0]
        return None if len(parts) > 1 else next(iter(parts), 0)

    def weight(self, node: Node, slot: int) -> GraphParameter | None:
        """Return the weight that an operand is, itself or as it was loaded; None when it is none."""
        source = self._source(node.graph, node.operands[slot]) if slot < len(node.operands) else None
        return source if isinstance(source, GraphParameter) and source.is_weight else None

    def parameter(self, node: Node, slot: int) -> GraphParameter | None:
        """Return the weight or input of the graph that an operand is; None when it is none."""
        source = self._source(node.graph, node.operands[slot]) if slot < len(node.operands) else None
        return source if isinstance(source, GraphParameter) else None

    def assigned(self, node: Node) -> GraphParameter | None:
        """Return the weight that an operator overwrites (optimizers written operator by operator); else None."""
        target = self.graph.parameters.get(node.operands[0]) if node.op in _WRITES and node.operands else None
        return target if target is not None and target.is_weight else None

    def is_gradient(self, node: Node, slot: int) -> bool:
        """Return whether an operand was computed in backward."""
        source = self._source(node.graph, node.operands[slot]) if slot < len(node.operands) else None
        return isinstance(source, Node) and self.scope(source).kind == "backward"

    def is_of_network(self, parameter: GraphParameter) -> bool:
        """Return whether a weight is the network's own: no optimizer state, no rate, no counter."""
        name = parameter.name
        is_state = name.partition(".")[2] in self.weights
        return parameter.is_weight and not is_state and ("." in name or name not in _COUNTERS)

    def rate(self, node: Node) -> int:
        """Return which operand of an optimizer's operator is the learning rate; -1 when it is not known."""
        named = next((i for i, n in enumerate(node.operand_names) if n in ("learning_rate", "lr")), -1)
        return named if named >= 0 else _RATES.get(node.op, -1)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The directions of the operators in it: forward, loss, backward, optimizer."""
        return frozenset(self.scope(node).kind for node in self.operators)

    def updated(self, node: Node) -> tuple[GraphParameter, int] | None:
        """Return the parameter that an optimizer's operator updates, and which operand is the gradient; else None."""
        if not node.operands or (node.op not in _GRADIENTS and not node.operand_names):
            return None
        target = self.graph.parameters.get(node.operands[0])
        named = next((i for i, n in enumerate(node.operand_names) if n in ("gradient", "grad", "gradients", "g")), -1)
        slot = named if named >= 0 else _GRADIENTS.get(node.op, -1)
        if target is None or not target.is_weight or not 0 < slot < len(node.operands):
            return None
        return target, slot

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of forward with what enters and leaves them, where the graph leaves no choice."""
        members: dict[tuple[str, ...], list[Node]] = defaultdict(list)
        kinds: dict[tuple[str, ...], str] = {}
        scopes = {id(node): self.scope(node) for node in self.operators}
        for node in self.operators:
            scope = scopes[id(node)]
            if scope.kind not in ("forward", "loss") or scope.recompute:
                continue
            path = tuple(name for name, _ in scope.cells)
            for n in range(1, len(path) + 1):
                members[path[:n]].append(node)
                kinds.setdefault(path[:n], scope.cells[n - 1][1])
        users = self._users
        found: dict[str, Cell] = {}
        for path in sorted(members, key=len):
            if not kinds[path] and _EXPANDED.match(path[-1]):
                continue
            inside = {id(node) for node in members[path]}
            site = site_of(path)
            found[site] = Cell(
                site=site, kind=kinds[path], entry=self._entry(members[path], inside),
                leave=self._leave(members[path], inside, users, scopes),
            )  # fmt: skip
        return list(found.values())

    @cached_property
    def loss(self) -> Node | None:
        """The operator that gives the loss: the number that a graph with backward returns first; None without one."""
        returned = self._returned
        is_trained = any(node.is_of_backward or self.scope(node).kind == "backward" for node in self.operators)
        first = returned[0] if returned and is_trained else None
        return first if first is not None and self.scope(first).kind in ("forward", "loss") else None

    @cached_property
    def results(self) -> list[Node | None]:
        """The operators whose values a graph without backward returns; None for a value of no operator."""
        if any(self.scope(node).kind in ("backward", "optimizer") for node in self.operators):
            return []
        return self._returned

    @property
    def _returned(self) -> list[Node | None]:
        """The operators whose values the only graph that returns something gives."""
        last = [node for (_, number), node in self.graph.nodes.items() if number == "%Return"]
        if len(last) != 1 or not last[0].operands:
            return []
        found: list[Node | None] = []
        waiting = [last[0].operands[0]]
        while waiting and len(found) < _MOST_RESULTS:
            source = self._source(last[0].graph, waiting.pop())
            if isinstance(source, Node) and source.op in _GATHERS:
                waiting += list(reversed(source.operands))
            else:
                found.append(source if isinstance(source, Node) and source.full_name else None)
        return found

    def _source(self, graph: str, operand: str) -> Node | GraphParameter | None:
        """Return the operator or parameter that an operand comes from; None when it is not found."""
        for _ in range(_DEEPEST):
            if operand in self.graph.parameters:
                return self.graph.parameters[operand]
            node = self.graph.nodes.get((graph, operand))
            if node is None or node.op not in _PASSES or not node.operands:
                return node
            operand = node.operands[0]
        return None

    @cached_property
    def _users(self) -> Mapping[int, list[Node]]:
        """By identity of a node the nodes that compute with its value; one that returns it counts, too."""
        found: dict[int, list[Node]] = defaultdict(list)
        for node in self.graph.nodes.values():
            if node.op in _PASSES or node.op in _GATHERS or node.op in _LEFT_OUT - {"Return"}:
                continue
            for source in self._sources(node):
                if isinstance(source, Node):
                    found[id(source)].append(node)
        return found

    def _sources(self, node: Node) -> Iterator[Node | GraphParameter]:
        waiting, seen = [(operand, 0) for operand in reversed(node.operands)], 0
        while waiting and seen < 10_000:
            seen += 1
            operand, depth = waiting.pop()
            source = self._source(node.graph, operand)
            if isinstance(source, Node) and source.op in _GATHERS and depth < _DEEPEST:
                waiting += [(inner, depth + 1) for inner in reversed(source.operands)]
            elif source is not None:
                yield source

    def _entry(self, members: list[Node], inside: set[int]) -> Tap | None:
        found: dict[int, Tap] = {}
        for node in members:
            for slot, operand in enumerate(node.operands):
                source = self._source(node.graph, operand)
                if source is None or (isinstance(source, GraphParameter) and source.is_weight):
                    continue
                if isinstance(source, Node) and (id(source) in inside or source.op in _LEFT_OUT | _GATHERS):
                    continue
                found.setdefault(id(source), Tap(node=node, is_input=True, slot=slot))
        return next(iter(found.values())) if len(found) == 1 else None

    def _leave(
        self, members: list[Node], inside: set[int], users: Mapping[int, list[Node]], scopes: Mapping[int, Scope]
    ) -> Tap | None:
        found: list[Node] = []
        for node in members:
            for user in users.get(id(node), []):
                scope = scopes.get(id(user))
                is_forward = user.op == "Return" or (scope is not None and scope.kind in ("forward", "loss"))
                if id(user) not in inside and is_forward:
                    found.append(node)
                    break
        return Tap(node=found[0], is_input=False, slot=0) if len(found) == 1 else None


def calls(keys: Iterable[tuple[str, str, int, int]]) -> dict[tuple[str, str, int, int], int]:
    """Number the calls of one site and phase in the order of the program: (site, phase, place, time) -> call."""
    counted: Counter[tuple[str, str]] = Counter()
    found: dict[tuple[str, str, int, int], int] = {}
    for key in sorted(set(keys), key=lambda k: (k[0], k[1], k[2], k[3])):
        found[key] = counted[key[0], key[1]]
        counted[key[0], key[1]] += 1
    return found
