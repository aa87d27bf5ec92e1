"""Both module trees as one list of lines: what is one module in both runs stands on one line.

Lines follow the baseline's tree in its execution order; modules of the candidate alone come after the one that ran
before them. A fused module stands beside the first of its parts, and again, as `is_part`, beside the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hypocenter.compare.comparison import Comparison, Pair, SiteCard, Spot, is_of_update

_LATE = 1 << 40  # after all that ran forward: modules of which only parameters were seen
_BETWEEN = 0.5  # a module of the candidate alone, after the line before it
_OF_PARAMETERS = frozenset({"param", "grad", "optimizer", "scaler"})
_OF_MODULES = frozenset({"forward", "backward"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the tree: a module, in both runs or in one."""

    parent: int  # line; -1 for the root
    depth: int
    baseline: str | None  # path; None: the candidate alone has it
    candidate: str | None
    is_part: tuple[bool, bool] = (False, False)  # of a module that stands on an earlier line too


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The lines of the tree, and which of them the rows of a pair belong to."""

    lines: tuple[Line, ...]
    of_pair: dict[Pair, tuple[int, ...]]
    missing: tuple[dict[int, list[Spot]], dict[int, list[Spot]]] = field(default_factory=lambda: ({}, {}))


def tree_of(found: Comparison, cards: tuple[Sequence[SiteCard], Sequence[SiteCard]]) -> Tree:
    """Lay out the module trees of both runs side by side.

    Args:
        cards: all spots of both runs, for the order in which modules ran; may be empty.
    """
    return _Layout(found, cards).tree()


class _Layout:
    def __init__(self, found: Comparison, cards: tuple[Sequence[SiteCard], Sequence[SiteCard]]) -> None:
        self.found = found
        matching = found.matching
        left = [spot for pair in matching.pairs for spot in pair.baseline]
        right = [spot for pair in matching.pairs for spot in pair.candidate]
        lone = matching.unmatched_baseline, matching.unmatched_candidate
        self.ranks = (
            _ranks(cards[0], [*left, *(card.spot for card in lone[0])]),
            _ranks(cards[1], [*right, *(card.spot for card in lone[1])]),
        )
        self.votes: Counter[tuple[str, str]] = Counter()
        self.split: set[tuple[str, str]] = set()  # one module of the baseline, several of the candidate
        for pair in matching.pairs:
            for mine in {owner(spot) for spot in pair.baseline}:
                for other in {owner(spot) for spot in pair.candidate}:
                    self.votes[mine, other] += 1
                    if len(pair.baseline) < len(pair.candidate):
                        self.split.add((mine, other))
        self.partner, self.part_of, self.extra = self._linked()
        self.lines: list[Line] = []
        self.at: dict[tuple[str | None, str | None], int] = {}

    def _linked(self) -> tuple[dict[str, str], dict[str, str], dict[str, list[str]]]:
        """Return modules that share a line, modules of the baseline that are parts, and those of the candidate."""
        partner: dict[str, str] = {"": ""}
        taken = {""}
        mine_ran, other_ran = self.ranks
        by_votes = sorted(self.votes, key=lambda link: (-self.votes[link], mine_ran[link[0]], other_ran[link[1]]))
        for mine, other in by_votes:
            if mine not in partner and other not in taken:
                partner[mine] = other
                taken.add(other)
        part_of: dict[str, str] = {}
        extra: dict[str, list[str]] = defaultdict(list)
        for mine, other in by_votes:
            if mine not in partner:
                part_of.setdefault(mine, other)
            if other not in taken and (mine, other) in self.split:
                extra[mine].append(other)
                taken.add(other)
        return partner, part_of, extra

    def tree(self) -> Tree:
        children = self._children()
        self._emit(("", ""), -1, children)
        of_pair = {pair: tuple(self._lines_of(pair)) for pair in self.found.matching.pairs}
        missing = (
            self._missing(self.found.matching.unmatched_baseline, 0),
            self._missing(self.found.matching.unmatched_candidate, 1),
        )
        return Tree(lines=tuple(self.lines), of_pair=of_pair, missing=missing)

    def _children(self) -> dict[tuple[str | None, str | None], list[tuple[float, tuple[str | None, str | None]]]]:
        """Return for each line, named by its two paths, the lines below it with what they are sorted by."""
        mine, other = self.ranks
        keys = {path: (path, self.partner.get(path) or self.part_of.get(path)) for path in mine}
        keys[""] = ("", "")
        back = {right: left for left, right in self.partner.items()}
        below: dict[tuple[str | None, str | None], list[tuple[float, tuple[str | None, str | None]]]] = defaultdict(
            list
        )
        for path, rank in mine.items():
            if path:
                below[keys[_above(path, mine)]].append((rank, keys[path]))
                for part, name in enumerate(self.extra.get(path, ())):
                    below[keys[_above(path, mine)]].append((rank + (part + 1) / 1000, (path, name)))
        placed = {*back, *(name for names in self.extra.values() for name in names)}
        for path in sorted(other, key=lambda name: other[name]):
            if path and path not in placed:
                over = _above(path, other)
                key = keys[back[over]] if over in back else (None, over) if over not in placed else ("", "")
                below[key].append((self._after(path, back), (None, path)))
        return below

    def _after(self, path: str, back: dict[str, str]) -> float:
        """Return the place of a module that only the candidate has: after what ran before it."""
        mine, other = self.ranks
        over = _above(path, other)
        before = [name for name in back if name and other[name] < other[path] and _above(name, other) == over]
        last = max(before, key=lambda name: other[name], default=None)
        parts = [mine[part] for part, whole in self.part_of.items() if whole == last]
        return (max([mine[back[last]], *parts]) if last is not None else -1) + _BETWEEN

    def _emit(
        self, top: tuple[str | None, str | None], parent: int,
        children: dict[tuple[str | None, str | None], list[tuple[float, tuple[str | None, str | None]]]],
    ) -> None:  # fmt: skip
        todo = [(top, parent)]
        while todo:
            key, above = todo.pop()
            number = len(self.lines)
            mine, other = key
            is_part = mine in self.extra and other in self.extra[mine], mine in self.part_of
            depth = self.lines[above].depth + 1 if above >= 0 else 0
            self.lines.append(Line(parent=above, depth=depth, baseline=mine, candidate=other, is_part=is_part))
            self.at.setdefault(key, number)
            below = sorted(children.get(key, ()), key=lambda one: one[0])
            todo += [(child, number) for _, child in reversed(below)]

    def _lines_of(self, pair: Pair) -> Iterator[int]:
        rights = {owner(spot) for spot in pair.candidate}
        for mine in dict.fromkeys(owner(spot) for spot in pair.baseline):
            own = self.at.get((mine, self.partner.get(mine) or self.part_of.get(mine)))
            if mine == "":
                own = 0
            parts = [self.at[mine, name] for name in self.extra.get(mine, ()) if name in rights]
            if own is not None and (not parts or self.lines[own].candidate in rights):
                yield own
            yield from parts
        for name in sorted(rights):
            if (None, name) in self.at:
                yield self.at[None, name]

    def _missing(self, cards: Sequence[SiteCard], side: int) -> dict[int, list[Spot]]:
        by_path = {(line.baseline, line.candidate)[side]: n for n, line in reversed(list(enumerate(self.lines)))}
        found: dict[int, list[Spot]] = defaultdict(list)
        for card in sorted(cards, key=lambda card: card.order):
            found[by_path.get(owner(card.spot), 0)].append(card.spot)
        return dict(found)


def _ranks(cards: Sequence[SiteCard], spots: Sequence[Spot]) -> dict[str, int]:
    """Return when each module ran first; those that never ran forward come last."""
    order = {card.spot: card.order for card in cards}
    found: dict[str, int] = {"": 0}
    for number, spot in enumerate(spots):
        rank = order.get(spot, number) + (0 if spot.phase == "forward" else _LATE)
        path = owner(spot)
        found[path] = min(found.get(path, rank), rank)
    return found


def _above(path: str, known: dict[str, int]) -> str:
    """Return the nearest module around a path that has values of its own."""
    while path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return ""


def owner(spot: Spot) -> str:
    """Return the module of a spot: of a parameter the one that holds it; the root for batches, losses and scalars."""
    if spot.phase in _OF_MODULES:
        return spot.site
    if spot.phase in _OF_PARAMETERS and not is_of_update(spot.site):
        return spot.site.rpartition(".")[0]
    return ""


def label(spot: Spot) -> str:
    """Return what the spot is called within its module: `out[0]`, `weight grad`, `out[0] call 1`."""
    name = "" if spot.phase in _OF_MODULES else spot.site.removeprefix(f"{owner(spot)}.") + " "
    return f"{name}{spot.port}" + (f" call {spot.call}" if spot.call else "")
