"""Everything the scripts of the page read, packed; rows are cut, and counted, when a page would become too large."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypocenter.compare.comparison import Comparison, FloorSource, Pair, RowComparison, Spot, stage_of
from hypocenter.compare.curves.of_runs import NamedCurves
from hypocenter.compare.judged_steps import FirstStep
from hypocenter.compare.sentences import place
from hypocenter.compare.verdict import counts_from
from hypocenter.record.facts_file import Facts
from hypocenter.report import wording
from hypocenter.report.comparison.page.tree import Line, Tree, label, tree_of
from hypocenter.report.comparison.ranking import times

SOURCES: tuple[FloorSource, ...] = ("repeats", "calibration", "rounding", "assumed", "none")
PACKED_BYTES = 1_700_000  # of the data: the rest of 2 MB is scripts, cards and curves
MOST_LONE = 4000  # spots without counterpart in the table; the tree counts all
_DIGITS = 6  # of a relative error on a page
_SOME_PORTS = 40  # of a module's spots without counterpart, named
_LONGEST_NAME = 160
CODES = ("equal", "within-noise", "cannot-tell", "differs", "unmatched")
"""From good to bad; a line without rows in a view is -1. `unmatched` is a line that has no pair at all."""
UNMATCHED = CODES.index("unmatched")
PARTS = ("parameters", "forward", "backward")
"""What a line is told of separately: a difference that only came back with the gradients began elsewhere."""
_PART_OF = {"param": 0, "optimizer": 0, "scaler": 0, "data": 1, "forward": 1, "loss": 1}  # all else: 2


def payload(found: Comparison, material: Material) -> dict[str, Any]:
    """Return plain JSON values: `packed` is gzip and base64 of the object that diff.js describes."""
    most = max(len(found.rows), len(material.scene.rows))
    while True:
        packed = _packed(_content(found, material, most))
        if len(packed) <= PACKED_BYTES or most <= 1:
            return {"packed": packed}
        most //= 2


def _packed(content: dict[str, Any]) -> str:
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode("ascii")


def _content(found: Comparison, material: Material, most: int) -> dict[str, Any]:
    tree = tree_of(found, material.scene.cards)
    kinds = _kinds(material.facts[0]), _kinds(material.facts[1])
    views: list[dict[str, Any]] = []
    shown: list[Pair] = []
    numbers: dict[Pair, int] = {}
    ran = {card.spot: card.order for card in material.scene.cards[0]}
    for name, rows, about in _views(found, material):
        kept = _kept(found, rows, most, ran)
        for row in kept:
            if row.pair not in numbers:
                numbers[row.pair] = len(shown)
                shown.append(row.pair)
        cut = f"; {len(rows) - len(kept):,} of {len(rows):,} rows, the least of them, are not on this page: see --json"
        views.append(
            {
                "name": name,
                "about": about + (cut if len(kept) < len(rows) else ""),
                "rows": [_row(row, numbers[row.pair]) for row in kept],
                "states": [
                    [
                        s.own,
                        s.below,
                        s.n_rows,
                        s.n_differ,
                        s.n_lone,
                        s.worst if s.worst < len(kept) else -1,
                        s.parts,
                        s.parts_below,
                    ]
                    for s in states_of(tree, [*kept, *_rest(rows, kept)])
                ],
                "first": _first(found, kept),
                "first_step": found.first.row.step if found.first is not None and found.first.row is not None else -1,
            }
        )
    return {
        "codes": CODES,
        "limits": {source: float(f"{counts_from(source, found):.3g}") for source in SOURCES},
        "lines": [_line(tree, n, kinds) for n in range(len(tree.lines))],
        "pairs": [_pair(pair, tree) for pair in shown],
        "lone": [*_lone(tree, 0), *_lone(tree, 1)][:MOST_LONE],
        "n_lone": sum(len(spots) for side in tree.missing for spots in side.values()),
        "views": views,
    }


def _views(found: Comparison, material: Material) -> list[tuple[str, Sequence[RowComparison], str]]:
    views: list[tuple[str, Sequence[RowComparison], str]] = []
    scene = material.scene
    if scene.step is not None and scene.rows:
        about = f"{wording.count(len(scene.rows), 'row')} of step {scene.step}, where the runs part"
        views.append((f"step {scene.step}", scene.rows, about))
    about = (
        f"the worst row of each of {wording.count(len(found.rows), 'pair')}, of {wording.count(found.n_rows, 'row')}"
    )
    views.append(("all steps" if found.n_steps != 1 else "the step", found.rows, about))
    return views


def _kept(found: Comparison, rows: Sequence[RowComparison], most: int, ran: Mapping[Spot, int]) -> list[RowComparison]:
    """Keep at most so many rows, the culprit's and then the worst, in the order in which a difference travels.

    Args:
        ran: when each spot ran first. A row's own `order` would put those of a later micro-batch last.
    """
    some = list(rows)
    if len(some) > most:
        culprit = found.first.row.pair if found.first is not None and found.first.row is not None else None
        some.sort(key=lambda row: (row.pair != culprit, -CODES.index(row.verdict), -times(row)))
        some = some[:most]

    def travels(row: RowComparison) -> tuple[int, int]:
        spot = row.pair.baseline[0]
        return stage_of(spot), ran.get(spot, row.order)

    return sorted(some, key=travels)


def _rest(rows: Sequence[RowComparison], kept: Sequence[RowComparison]) -> list[RowComparison]:
    pairs = {row.pair for row in kept}
    return [row for row in rows if row.pair not in pairs]


def _first(found: Comparison, rows: Sequence[RowComparison]) -> int:
    culprit = found.first.row if found.first is not None else None
    if culprit is None:
        return -1
    return next((n for n, row in enumerate(rows) if row.pair == culprit.pair), -1)


def _row(row: RowComparison, pair: int) -> list[Any]:
    distance = row.distance
    values = (distance.relative, distance.low, distance.high) if distance is not None else (None, None, None)
    return [
        pair, CODES.index(row.verdict), *map(_number, values), _number(row.floor.relative), row.floor.source,
        row.floor.n_samples, row.step, row.microbatch, distance.depth if distance is not None else "",
        _number(distance.cosine if distance is not None else None),
        _number(distance.scale if distance is not None else None), *row.dtypes, *map(_shape, row.shapes),
    ]  # fmt: skip


def _pair(pair: Pair, tree: Tree) -> list[Any]:
    left, right = (_side(spots) for spots in (pair.baseline, pair.candidate))
    kind = "" if pair.layout.kind == "identity" else pair.layout.kind
    if pair.layout.swapped and kind != "swapped":
        kind += ", swapped"
    return [
        pair.baseline[0].phase, left, "" if right == left else right, pair.by, kind, wording.clean(pair.why),
        _number(pair.certainty), tree.of_pair[pair], wording.clean(label(pair.baseline[0]), _LONGEST_NAME),
        [len(pair.baseline), len(pair.candidate)],
    ]  # fmt: skip


def _side(spots: Sequence[Spot]) -> str:
    names = [f"{place(spot.site, spot.port)}{f' call {spot.call}' if spot.call else ''}" for spot in spots]
    return wording.clean(" + ".join(names), _LONGEST_NAME * max(1, min(len(names), 4)))


def _line(tree: Tree, number: int, kinds: tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]) -> list[Any]:
    line = tree.lines[number]
    cells = [
        _cell(path, above, names, is_part)
        for path, above, names, is_part in zip(
            (line.baseline, line.candidate), _paths(tree, line), kinds, line.is_part, strict=True
        )
    ]
    ports = [
        [wording.clean(label(spot), _LONGEST_NAME) for spot in side.get(number, ())[:_SOME_PORTS]]
        for side in tree.missing
    ]
    return [line.parent, line.depth, *cells, [len(side.get(number, ())) for side in tree.missing], ports]


def _paths(tree: Tree, line: Line) -> tuple[str, str]:
    if line.parent < 0:
        return "", ""
    above = tree.lines[line.parent]
    return above.baseline or "", above.candidate or ""


def _cell(path: str | None, above: str, kinds: dict[str, tuple[str, str]], is_part: bool) -> list[Any] | None:
    if path is None:
        return None
    kind, where = kinds.get(path, ("", ""))
    shown = path.removeprefix(f"{above}.") if above else path
    return [wording.clean(path), wording.clean(shown or "(model)"), wording.clean(kind), wording.clean(where), is_part]


def _kinds(facts: Facts | None) -> dict[str, tuple[str, str]]:
    return {module.path: (module.kind, module.where) for module in facts.modules} if facts is not None else {}


def _lone(tree: Tree, side: int) -> list[list[Any]]:
    return [
        [side, spot.phase, _side((spot,)), at]
        for at, spots in sorted(tree.missing[side].items())
        for spot in spots
    ]  # fmt: skip


def _number(value: float | None) -> float | str | None:
    if value is None:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{_DIGITS}g}")


def _shape(dims: Sequence[int]) -> str:
    return "×".join(map(str, dims))


@dataclass(slots=True)
class State:
    """The state of a line of the tree, in one view."""

    own: int = -1
    below: int = -1  # of itself and all lines below, of rows only
    n_rows: int = 0  # of itself and below
    n_differ: int = 0
    n_lone: int = 0  # spots without counterpart, of itself and below
    worst: int = -1  # number of its worst row
    parts: list[int] = field(default_factory=lambda: [-1, -1, -1])  # of PARTS, its own rows
    parts_below: list[int] = field(default_factory=lambda: [-1, -1, -1])  # of itself and all below


def states_of(tree: Tree, rows: Sequence[RowComparison]) -> list[State]:
    """Return one state for each line of the tree."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the page shows beside the comparison. All of it may be missing: the page then shows less."""

    scene: FirstStep = field(default_factory=FirstStep)
    facts: tuple[Facts | None, Facts | None] = (None, None)  # of baseline and candidate
    curves: tuple[NamedCurves, ...] = ()
    command: str = ""  # that makes the page again
