"""Modules that stand at the same place: class family, shapes and parameters alike, in the same order of execution.

Only modules of which nothing is paired are looked at, between those that are (anchors) and below ancestors that are a
pair. What fits at more than one place is left over.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.comparison import Pair, SiteCard, Spot
from hypocenter.compare.naming.tables import unwrapped
from hypocenter.compare.pairing.chain import Task, matcher
from hypocenter.compare.pairing.layouts import is_parameter, kind_of
from hypocenter.compare.pairing.ports import direction, pair_ports
from hypocenter.compare.pairing.sameness import NEAR, distances, is_telling

_FAMILIES = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        ("norm", "norm"), ("embed", "embedding"), ("conv1d|linear|dense$", "linear"), ("attention|attn", "attention"),
        ("mlp|feedforward|ffn|denserelu", "mlp"), ("layer$|block$|decoderlayer|encoderlayer", "layer"),
        ("silu|gelu|relu|swiglu|activation|sigmoid|tanh", "activation"), ("dropout", "dropout"),
    )
)  # fmt: skip
_ALIKE, _AGREE, _ANCHOR = (
    8,
    8,
    64,
)  # weight of the same token, of values that agree beside it, of what is paired already
_LEAST_MARGIN = 2  # a quarter of a token: values of one in four ports
_SAMPLE = 1000  # of the pairs there are already, to see whether the runs agree at all
_UNSURE, _SURE = 0.6, 0.95  # certainty when no value agrees, and when all do
AT_MOST_CELLS = 16_000_000  # 4,000 against 4,000: three tables of int32, 200 MB


@dataclass(slots=True, kw_only=True)
class _Module:
    """One module, with the spots that are its own."""

    path: str
    spots: list[SiteCard] = field(default_factory=list[SiteCard])
    order: int = 1 << 62
    token: object = None
    anchor: tuple[str, str] | None = None  # (baseline path, candidate path) when something of it is paired
    under: tuple[str, str] | None = None  # the nearest ancestor's, below the root


@matcher("structure", order=40)
def pair(task: Task) -> Iterator[Pair]:
    """Align the modules of both runs."""
    if all(is_parameter(card) and "." not in card.spot.site for card in task.baseline):
        return
    anchors = _anchors(task.pairs)
    ours = _modules(task.all_baseline, {a: (a, b) for a, b in anchors})
    theirs = _modules(task.all_candidate, {b: (a, b) for a, b in anchors})
    if len(ours) * len(theirs) > AT_MOST_CELLS:
        return
    weights = _weights(ours, theirs)
    least = _ALIKE + 1 if _agree_elsewhere(task) else _ALIKE
    for found in align(weights):
        a, b, weight = ours[found.row], theirs[found.column], int(weights[found.row, found.column])
        if a.anchor is None and found.margin >= _LEAST_MARGIN and weight >= least:
            yield from _pairs(a, b, weight)


def _agree_elsewhere(task: Task) -> bool:
    """Return whether most pairs so far hold the same values: then modules that are the same agree in one, too.

    Two runs that start from other weights agree nowhere; there class, shapes and place must do.
    """
    ours, theirs = ({c.spot: c for c in cards} for cards in (task.all_baseline, task.all_candidate))
    single = [
        (ours[pair.baseline[0]], theirs[pair.candidate[0]])
        for pair in task.pairs
        if pair.baseline[0].phase in ("forward", "param") and len(pair.baseline) == len(pair.candidate) == 1
    ]
    telling = [(a, b) for a, b in single if is_telling(a) and is_telling(b)][:_SAMPLE]
    agree = sum(float(distances([a], [b])[0, 0]) <= NEAR for a, b in telling)
    return 2 * agree > len(telling)


def _anchors(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    """Return pairs of modules whose spots are mostly paired with one another."""
    votes: Counter[tuple[str, str]] = Counter()
    for found in pairs:
        for a in found.baseline:
            for b in found.candidate:
                votes[(_owner(a), _owner(b))] += 1
    taken: tuple[set[str], set[str]] = (set(), set())
    anchors: list[tuple[str, str]] = []
    for (a, b), _ in sorted(votes.items(), key=lambda item: (-item[1], sorted(item[0]))):
        if a not in taken[0] and b not in taken[1]:
            anchors.append((a, b))
            taken[0].add(a)
            taken[1].add(b)
    partly = {a for a, _ in votes} - taken[0], {b for _, b in votes} - taken[1]
    return [*anchors, *((a, "") for a in sorted(partly[0])), *(("", b) for b in sorted(partly[1]))]


def _owner(spot: Spot) -> str:
    """Return the path of the module that a spot belongs to."""
    if spot.phase in ("forward", "backward"):
        return spot.site
    return spot.site.rpartition(".")[0]


def _modules(cards: Sequence[SiteCard], anchors: dict[str, tuple[str, str]]) -> list[_Module]:
    found: dict[str, _Module] = {}
    for card in cards:
        if card.spot.phase in ("forward", "backward") or (is_parameter(card) and "." in card.spot.site):
            path = _owner(card.spot)
            module = found.setdefault(path, _Module(path=path))
            module.spots.append(card)
            early = card.order if card.spot.phase == "forward" else card.order + (1 << 32)  # parameters have no turn
            module.order = min(module.order, early)
    for module in found.values():
        module.anchor = anchors.get(module.path)
        module.token = module.anchor or _token(module)
        module.under = _under(module.path, anchors)
    return sorted(found.values(), key=lambda module: module.order)


def _under(path: str, anchors: dict[str, tuple[str, str]]) -> tuple[str, str] | None:
    while "." in path:
        path = path.rpartition(".")[0]
        if path in anchors:
            return anchors[path]
    return None


def _token(module: _Module) -> object:
    """Return what two modules that are the same have in common, whatever their names and layouts are."""
    forward = [card for card in module.spots if card.spot.phase == "forward"]
    values = [card for card in module.spots if is_parameter(card)]
    first = next((card for card in values if card.spot.port == "value"), values[0]) if values else None
    weights = [
        card for card in values if first and (card.spot.phase, card.spot.port) == (first.spot.phase, first.spot.port)
    ]
    kinds = {card.module for card in module.spots} - {""}
    return (
        _family(min(kinds)) if kinds else "",
        tuple(sorted((direction(card.spot.port), card.spot.call, _size(card)) for card in forward)),
        tuple(sorted(_size(card) for card in weights)),
    )


def _family(kind: str) -> str:
    return next((name for pattern, name in _FAMILIES if pattern.search(kind)), kind.lower())


def _size(card: SiteCard) -> str:
    return f"{sorted(card.shape)}{kind_of(card.dtype)}"


def _weights(ours: Sequence[_Module], theirs: Sequence[_Module]) -> NDArray[np.int32]:
    weights = np.zeros((len(ours), len(theirs)), dtype=np.int32)
    alike: dict[object, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, modules in enumerate((ours, theirs)):
        for i, module in enumerate(modules):
            alike[(module.token, module.anchor or module.under, module.anchor is None)][side].append(i)
    for rows, columns in alike.values():
        if not rows or not columns:
            continue
        anchored = ours[rows[0]].anchor is not None
        grid = np.ix_(rows, columns)
        weights[grid] = (
            _ANCHOR if anchored else _ALIKE + _agreement([ours[i] for i in rows], [theirs[j] for j in columns])
        )
    return weights


def _agreement(ours: Sequence[_Module], theirs: Sequence[_Module]) -> NDArray[np.int32]:
    """Return a matrix of how well the values of modules with the same token agree, from 0 to _AGREE."""
    mine, yours = [_values(module) for module in ours], [_values(module) for module in theirs]
    width = min(map(len, (*mine, *yours)))
    total = np.zeros((len(ours), len(theirs)), dtype=np.int32)
    for k in range(width):
        total += distances([cards[k] for cards in mine], [cards[k] for cards in yours]) <= NEAR
    return -(-total * _AGREE // max(width, 1))  # rounded up: one that agrees counts


def _values(module: _Module) -> list[SiteCard]:
    """Return the cards of a module whose values may agree, in an order that does not depend on names."""
    cards = [card for card in module.spots if card.spot.phase == "forward" or card.spot.port == "value"]
    return sorted(cards, key=lambda c: (c.spot.phase, direction(c.spot.port), c.spot.call, _size(c), c.order))


def _pairs(a: _Module, b: _Module, weight: int) -> Iterator[Pair]:
    agree = (weight - _ALIKE) / _AGREE
    certainty = round(_UNSURE + (_SURE - _UNSURE) * min(1.0, agree), 3)
    why = f"same class, shapes and place: {a.path or 'the model'} is {b.path or 'the model'}"
    why += f", {agree:.0%} of its values agree" if agree else ""
    for ours, theirs in _parts(a, b):
        for match in pair_ports(ours, theirs):
            spots = (match.baseline.spot,), (match.candidate.spot,)
            yield Pair(
                baseline=spots[0], candidate=spots[1], by="structure", layout=match.layout, why=why, certainty=certainty
            )


def _parts(a: _Module, b: _Module) -> Iterator[tuple[list[SiteCard], list[SiteCard]]]:
    """Yield what to pair within two modules: their activations; parameters of the same name, or of a unique shape."""
    yield [card for card in a.spots if not is_parameter(card)], [card for card in b.spots if not is_parameter(card)]
    mine, yours = _leaves(a), _leaves(b)
    for leaf in [leaf for leaf in mine if leaf in yours]:
        yield mine.pop(leaf), yours.pop(leaf)
    ours_by, theirs_by = _by_shape(mine), _by_shape(yours)
    for shape in [shape for shape in ours_by if shape in theirs_by]:
        if len(ours_by[shape]) == len(theirs_by[shape]) == 1:
            yield mine[ours_by[shape][0]], yours[theirs_by[shape][0]]


def _leaves(module: _Module) -> dict[str, list[SiteCard]]:
    found: dict[str, list[SiteCard]] = defaultdict(list)
    for card in module.spots:
        if is_parameter(card):
            found[unwrapped(card.spot.site).rpartition(".")[2]].append(card)
    return dict(found)


def _by_shape(leaves: dict[str, list[SiteCard]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for leaf, cards in leaves.items():
        found[_size(max(cards, key=lambda card: len(card.shape)))].append(leaf)
    return found


# A longest common subsequence with weights (Needleman and Wunsch 1970, no cost for gaps), row by row in NumPy. Forward
# and backward tables together give, for each pair, the best alignment without it: only pairs that every good alignment
# has are worth anything, and the answer does not depend on which side comes first.
@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """One pair of an alignment. `margin`: by how much the best alignment without it weighs less."""

    row: int
    column: int
    margin: int


def align(weights: NDArray[np.int32]) -> list[Aligned]:
    """Align rows with columns in order; `weights[i, j]` is above 0 where they may be aligned.

    Pairs that can be left out, or exchanged for others, at no loss are not given.
    """
    if weights.size == 0 or weights.size > AT_MOST_CELLS or not weights.any():
        return []
    before, after = _table(weights), _table(weights[::-1, ::-1])[::-1, ::-1]
    best = int(before[-1, -1])
    with_pair = np.where(weights > 0, before[:-1, :-1] + weights + after[1:, 1:], -1)
    without = np.maximum(
        _second(with_pair, (before[:-1] + after[1:]).max(axis=1), 1)[:, None],
        _second(with_pair.T, (before[:, :-1] + after[:, 1:]).max(axis=0), 1)[None, :],
    )
    rows, columns = np.nonzero((with_pair == best) & (without < best))
    return [
        Aligned(row=int(i), column=int(j), margin=best - int(without[i, j])) for i, j in zip(rows, columns, strict=True)
    ]


def _table(weights: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return a table whose entry (i, j) is the weight of the best alignment of the first i rows and j columns."""
    n_rows, n_columns = weights.shape
    table = np.zeros((n_rows + 1, n_columns + 1), dtype=np.int32)
    for i in range(n_rows):
        row = np.maximum(table[i, 1:], table[i, :-1] + weights[i])
        np.maximum.accumulate(row, out=table[i + 1, 1:])
    return table


def _second(totals: NDArray[np.int32], skipped: NDArray[np.int32], axis: int) -> NDArray[np.int32]:
    """Return the best that each row can have without its best column: another column, or being left out."""
    if totals.shape[axis] < 2:
        return skipped
    return np.maximum(skipped, np.partition(totals, -2, axis=axis)[:, -2])
