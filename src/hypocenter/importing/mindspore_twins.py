"""Operators whose names tell another place than their own: of what MindSpore compiled once for several places.

Two blocks of one class share the graph of what stands in their own `construct`, so the `Add` of block 1 is called
`layers-CellList/0-Block/Add-op1`. And all sums of equal shapes in a program may share the graph of the function `add`:
then every one has the cell, and the line of code, of the first. Such operators have one identity in the graph.

Where there are as many as cells of a class side by side, and the values agree, the n-th belongs to the n-th cell. Else
the cell is told by the values: it is the innermost that holds an operand and another neighbour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from hypocenter.importing.mindspore_graph import Node

Path = tuple[tuple[str, str], ...]
"""Cells from the outermost in: name and class."""

EXPANSION = "Expand/"  # how names of operators begin that were put in place of one: without a cell
_OF_FUNCTIONS = "/mindspore/ops/"  # files whose functions are compiled once for all who call them
_LISTS = ("CellList", "CellDict")  # compute nothing themselves
_ROUNDS = 8
_MOST_SEEN = 200  # operators that are looked at for one


@dataclass(slots=True)
class Places:
    """Where operators stand, and whose lines of code cannot be trusted; both by identity of the node."""

    cells: dict[int, Path] = field(default_factory=dict[int, Path])
    unsure: set[int] = field(default_factory=set[int])


def places_of(
    nodes: Sequence[Node],
    paths: Mapping[int, Path],
    given: Callable[[Node], Sequence[Node]],
    users: Mapping[int, Sequence[Node]],
) -> Places:
    """Find the places that names do not tell.

    Args:
        nodes: of forward, in the graph's order.
        paths: what their names say, by identity of the node.
        given: the operators whose values one reads.
        users: those that read its value, by identity of the node.
    """
    groups = _groups(nodes, paths)
    floating = [node for node in nodes if node.full_name.startswith(EXPANSION)]
    search = _Search(paths=paths, given=given, users=users)
    search.pending = {id(node) for node in (*floating, *(node for group in groups for node in group))}
    search.beside, search.own = _beside(nodes, paths), {(paths[id(node)], node.op) for node in nodes}
    left = search.side_by_side(groups)
    shared = [group for group in left if _OF_FUNCTIONS in group[0].via]
    search.settle([*floating, *(node for group in shared for node in group)])
    search.side_by_side([group for group in left if _OF_FUNCTIONS not in group[0].via])
    found = Places(cells=search.cells)
    for group in shared:
        found.unsure.update(_unsure(group, paths, search.cells))
    return found


def _groups(nodes: Sequence[Node], paths: Mapping[int, Path]) -> list[list[Node]]:
    """Group operators of one name, and of one identity or line of code: all but one may be elsewhere."""
    found: dict[object, list[Node]] = defaultdict(list)
    for node in nodes:
        if _OF_FUNCTIONS in node.via and not node.full_name.startswith(EXPANSION):
            found[node.op, paths[id(node)], node.source].append(node)
        elif node.identity:
            found[node.op, node.identity].append(node)
    return [g for g in found.values() if len(g) > 1 and all(paths[id(n)] == paths[id(g[0])] for n in g)]


def _unsure(group: Sequence[Node], paths: Mapping[int, Path], cells: Mapping[int, Path]) -> set[int]:
    """Return nodes whose line of code may be another one's; in cells of one class, one each, the line is the same."""
    places = [cells.get(id(node), ()) for node in group]
    if len(set(places)) == len(places) and len({tuple(kind for _, kind in place) for place in places}) == 1:
        return set()
    is_first_right = places[0] == paths[id(group[0])]
    return {id(node) for node in group[is_first_right:]}


@dataclass(slots=True, kw_only=True)
class _Search:
    paths: Mapping[int, Path]
    given: Callable[[Node], Sequence[Node]]
    users: Mapping[int, Sequence[Node]]
    pending: set[int] = field(default_factory=set[int])  # whose names may not be right
    cells: dict[int, Path] = field(default_factory=dict[int, Path])
    beside: Mapping[Path, Sequence[tuple[str, str]]] = field(default_factory=dict[Path, "Sequence[tuple[str, str]]"])
    own: set[tuple[Path, str]] = field(default_factory=set["tuple[Path, str]"])

    def side_by_side(self, groups: Sequence[list[Node]]) -> list[list[Node]]:
        """Place groups that have one operator for each of some cells side by side; return the other groups."""
        left = list(groups)
        for _ in range(_ROUNDS):
            placed = [group for group in left if self._place(group)]
            if not placed:
                break
            left = [group for group in left if all(group is not other for other in placed)]
        return left

    def settle(self, floating: Sequence[Node]) -> None:
        """Place single operators by the values that they read and give."""
        for node in sorted(floating, key=lambda node: node.index):
            place = self._around(node)
            self.cells[id(node)] = place

    def _place(self, group: list[Node]) -> bool:
        places = _side_by_side(self.paths[id(group[0])], len(group), self.beside, self.own, group[0])
        is_so = bool(places) and all(self._touches(p, n) for n, p in zip(group, places, strict=True))
        if is_so:
            self.cells.update((id(node), place) for node, place in zip(group, places, strict=True))
        return is_so

    def _known(self, node: Node) -> Path | None:
        if id(node) in self.cells:
            return self.cells[id(node)]
        return None if id(node) in self.pending else self.paths.get(id(node))

    def _touches(self, place: Path, node: Node) -> bool:
        """Return whether an operator reads from, or gives to, one that stands in a cell or below."""
        known = [self._known(other) for other in (*self.given(node), *self.users.get(id(node), ()))]
        return any(path is not None and path[: len(place)] == place for path in known)

    def _around(self, node: Node) -> Path:
        """Return the innermost cell that holds an operand and another neighbour."""
        operands = self._reached(node, self.given)
        takers = self._reached(node, lambda other: self.users.get(id(other), ()))
        pairs = [(a, b) for i, a in enumerate(operands) for b in (*operands[i + 1 :], *takers)]
        if pairs:
            return max((_without_list(_common(a, b)) for a, b in pairs), key=len)
        alone = operands or takers
        return _without_list(alone[0][:-1]) if alone else ()

    def _reached(self, node: Node, of: Callable[[Node], Sequence[Node]]) -> list[Path]:
        """Return places of the nearest operators on one side whose places are known."""
        found: dict[int, Path] = {}
        waiting, seen = list(of(node)), {id(node)}
        while waiting and len(seen) < _MOST_SEEN:
            other = waiting.pop(0)
            if id(other) in seen:
                continue
            seen.add(id(other))
            path = self._known(other)
            if path is not None:
                found[id(other)] = path
            else:
                waiting += of(other)
        return list(found.values())


def _common(a: Path, b: Path) -> Path:
    return tuple(pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _without_list(path: Path) -> Path:
    return path[:-1] if path and path[-1][1] in _LISTS else path


def _beside(nodes: Sequence[Node], paths: Mapping[int, Path]) -> dict[Path, list[tuple[str, str]]]:
    """Return the cells below each cell, in the order in which they compute first."""
    found: dict[Path, dict[tuple[str, str], None]] = defaultdict(dict)
    for node in nodes:
        path = paths[id(node)]
        for n, cell in enumerate(path):
            found[path[:n]].setdefault(cell)
    return {path: list(cells) for path, cells in found.items()}


def _side_by_side(
    path: Path, n: int, beside: Mapping[Path, Sequence[tuple[str, str]]], own: set[tuple[Path, str]], node: Node
) -> list[Path]:
    """Return the n paths that differ in one cell, of which there are n of its class; [] where that is not so."""
    for at in reversed(range(len(path))):
        cells = [cell for cell in beside.get(path[:at], ()) if cell[1] and cell[1] == path[at][1]]
        if len(cells) != n or cells[0] != path[at]:
            continue
        places = [(*path[:at], cell, *path[at + 1 :]) for cell in cells]
        if not any((place, node.op) in own for place in places[1:]):
            return places
    return []
