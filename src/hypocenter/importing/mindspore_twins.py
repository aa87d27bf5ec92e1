"""Operators of cells that MindSpore compiled once for several places: all of them have the scope of the first.

Two blocks of one class share the graph of what stands in their own `construct`, so the `Add` of block 1 is called
`layers-CellList/0-Block/Add-op1`. Such operators have one identity in the graph. Where there are as many of them as
cells of that class side by side, the n-th belongs to the n-th cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hypocenter.importing.mindspore_graph import Node

Path = tuple[tuple[str, str], ...]
"""Cells from the outermost in: name and class."""


def placed(nodes: Sequence[Node], paths: Mapping[int, Path]) -> dict[int, Path]:
    """The cells of operators that are called by another one's, by identity of the node.

    Args:
        nodes: of forward, in the graph's order.
        paths: what their names say, by identity of the node.
    """
    beside = _beside(nodes, paths)
    own = {(paths[id(node)], node.op, node.identity) for node in nodes}
    groups: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        if node.identity:
            groups[node.op, node.identity].append(node)
    found: dict[int, Path] = {}
    for group in groups.values():
        path = paths[id(group[0])]
        if len(group) < 2 or any(paths[id(node)] != path for node in group):
            continue
        for node, place in zip(group, _places(path, len(group), beside, own, group[0]), strict=False):
            found[id(node)] = place
    return found


def _beside(nodes: Sequence[Node], paths: Mapping[int, Path]) -> dict[Path, list[tuple[str, str]]]:
    """Cells below a cell, in the order in which they compute first."""
    found: dict[Path, dict[tuple[str, str], None]] = defaultdict(dict)
    for node in nodes:
        path = paths[id(node)]
        for n, cell in enumerate(path):
            found[path[:n]].setdefault(cell)
    return {path: list(cells) for path, cells in found.items()}


def _places(
    path: Path,
    n: int,
    beside: Mapping[Path, Sequence[tuple[str, str]]],
    own: set[tuple[Path, str, str]],
    node: Node,
) -> list[Path]:
    """The n paths that differ in one cell, which has n of its class side by side; [] where that is not so."""
    for at in reversed(range(len(path))):
        cells = [cell for cell in beside.get(path[:at], ()) if cell[1] and cell[1] == path[at][1]]
        if len(cells) != n or cells[0] != path[at]:
            continue
        places = [(*path[:at], cell, *path[at + 1 :]) for cell in cells]
        if not any(place == p and op == node.op for place in places[1:] for p, op, _ in own):
            return places
    return []
