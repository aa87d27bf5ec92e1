"""importing.mindspore_twins: cells of operators that MindSpore names by the first place that uses their graph."""

from __future__ import annotations

from collections import defaultdict

from hypocenter.importing.mindspore_graph import Node
from hypocenter.importing.mindspore_names import scope_of
from hypocenter.importing.mindspore_twins import Path, Places, places_of
from hypocenter.nouns import Source

OPS = "/x/site-packages/mindspore/ops/auto_generate/gen_ops_def.py"
BLOCKS = "Default/blocks-CellList"


class Program:
    """Operators in order; `of` names whose values they read."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.given: dict[int, list[Node]] = {}
        self.users: dict[int, list[Node]] = defaultdict(list)

    def add(self, scope: str, op: str, *of: Node, identity: str = "", via: str = "", line: int = 1) -> Node:
        node = Node(
            index=len(self.nodes), graph="g", op=op, operands=(), full_name=f"{scope}/{op}-op{len(self.nodes)}",
            identity=identity, via=via, source=Source(file="m.py", line=line),
        )  # fmt: skip
        self.nodes.append(node)
        self.given[id(node)] = list(of)
        for other in of:
            self.users[id(other)].append(node)
        return node

    def places(self) -> Places:
        paths = {id(node): scope_of(node.full_name).cells for node in self.nodes}
        return places_of(self.nodes, paths, lambda node: self.given[id(node)], self.users)


def dotted(path: Path | None) -> str | None:
    return None if path is None else ".".join(name for name, _ in path)


def test_what_blocks_of_a_class_share_belongs_to_each_in_turn() -> None:
    p = Program()
    x = p.add("Default/embed-Embedding", "Gather")
    sums: list[Node] = []
    for n in range(3):
        inner = p.add(f"{BLOCKS}/{n}-Block/wo-Dense", "MatMul", x)
        x = p.add(f"{BLOCKS}/0-Block", "Add", x, inner, identity="7")
        sums.append(x)

    found = p.places()

    assert [dotted(found.cells.get(id(node))) for node in sums] == ["blocks.0", "blocks.1", "blocks.2"]
    assert found.unsure == set()


def test_sums_of_a_whole_program_are_placed_by_their_values_and_have_no_line() -> None:
    p = Program()
    x = p.add("Default/embed-Embedding", "Gather")
    sums: list[Node] = []
    for n in range(2):
        scores = p.add(f"{BLOCKS}/{n}-Block/attention-Attention/q-Dense", "MatMul", x)
        masked = p.add(f"{BLOCKS}/0-Block/attention-Attention", "Add", scores, via=OPS, line=40)
        out = p.add(f"{BLOCKS}/{n}-Block/attention-Attention/out-Dense", "MatMul", masked)
        first = p.add(f"{BLOCKS}/0-Block/attention-Attention", "Add", x, out, via=OPS, line=40)
        ff = p.add(f"{BLOCKS}/{n}-Block/ff-Dense", "MatMul", first)
        x = p.add(f"{BLOCKS}/0-Block/attention-Attention", "Add", first, ff, via=OPS, line=40)
        sums += [masked, first, x]

    found = p.places()

    assert [dotted(found.cells[id(node)]) for node in sums] == [
        "blocks.0.attention", "blocks.0", "blocks.0", "blocks.1.attention", "blocks.1", "blocks.1",
    ]  # fmt: skip
    assert found.unsure == {id(node) for node in sums[1:]}  # the first has its own line


def test_what_was_put_in_place_of_an_operator_stands_between_its_neighbours() -> None:
    p = Program()
    h = p.add("Default/ff-FeedForward/act-ReLU", "ReLU")
    scaled = p.add("Expand/_Muls", "Mul", h)
    p.add("Default/ff-FeedForward/wo-Dense", "MatMul", scaled)

    found = p.places()

    assert dotted(found.cells[id(scaled)]) == "ff"
    assert id(scaled) not in found.unsure


def test_a_cell_that_is_called_twice_keeps_its_name() -> None:
    p = Program()
    x = p.add("Default/embed-Embedding", "Gather")
    for _ in range(2):
        x = p.add("Default/norm-LayerNorm", "LayerNorm", x, identity="3", via="/x/mindspore/nn/layer/normalization.py")

    found = p.places()

    assert found.cells == {}
    assert found.unsure == set()
