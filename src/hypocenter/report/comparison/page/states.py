"""How each line of the tree is: the worst of its own rows, and of all below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypocenter.compare.comparison import RowComparison
from hypocenter.report.comparison.page.tree import Tree
from hypocenter.report.comparison.ranking import times

CODES = ("equal", "within-noise", "cannot-tell", "differs", "unmatched")
"""From good to bad; a line without rows in a view is -1. `unmatched` is a line that has no pair at all."""
UNMATCHED = CODES.index("unmatched")
PARTS = ("parameters", "forward", "backward")
"""What a line is told of separately: a difference that only came back with the gradients began elsewhere."""
_PART_OF = {"param": 0, "optimizer": 0, "scaler": 0, "data": 1, "forward": 1, "loss": 1}  # all else: 2


@dataclass(slots=True)
class State:
    """Of a line, in one view."""

    own: int = -1
    below: int = -1  # of itself and all lines below, of rows only
    n_rows: int = 0  # of itself and below
    n_differ: int = 0
    n_lone: int = 0  # spots without counterpart, of itself and below
    worst: int = -1  # number of its worst row
    parts: list[int] = field(default_factory=lambda: [-1, -1, -1])  # of PARTS, its own rows
    parts_below: list[int] = field(default_factory=lambda: [-1, -1, -1])  # of itself and all below


def states_of(tree: Tree, rows: Sequence[RowComparison]) -> list[State]:
    """One state per line."""
    states = [State() for _ in tree.lines]
    paired = {at for lines in tree.of_pair.values() for at in lines}
    scores: dict[int, tuple[int, float]] = {}
    for number, row in enumerate(rows):
        code = CODES.index(row.verdict)
        for at in tree.of_pair.get(row.pair, ()):
            state = states[at]
            score = (code, times(row))
            if at not in scores or score > scores[at]:
                scores[at], state.own, state.worst = score, code, number
            part = _PART_OF.get(row.pair.baseline[0].phase, 2)
            state.parts[part] = max(state.parts[part], code)
            state.n_rows += 1
            state.n_differ += code == CODES.index("differs")
    for side in tree.missing:
        for at, spots in side.items():
            states[at].n_lone += len(spots)
    for at, state in enumerate(states):
        state.below, state.parts_below = state.own, list(state.parts)
        if at not in paired and state.n_lone:
            state.own = UNMATCHED
    for at in range(len(states) - 1, 0, -1):  # lines stand below their parents
        over, state = states[tree.lines[at].parent], states[at]
        over.below = max(over.below, state.below)
        over.parts_below = [max(two) for two in zip(over.parts_below, state.parts_below, strict=True)]
        over.n_rows += state.n_rows
        over.n_differ += state.n_differ
        over.n_lone += state.n_lone
    return states
