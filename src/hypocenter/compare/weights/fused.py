"""Fused tensors that names tell nothing of (`qkv`, `Wqkv`, `query_key_value`): their parts, and how they lie in them.

Names only say what is tried first. Shapes say what can be, and the values say what is: in which order the parts lie,
one after another or group by group (per head, per query group), and whether the whole is transposed.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hypocenter.compare.comparison import Layout, Pair, SiteCard
from hypocenter.compare.naming.tables import numbers
from hypocenter.compare.weights.checkpoint import Planned, Tensor
from hypocenter.compare.weights.lay import ALIKE, orders, part_error, reordering_error, sample_error
from hypocenter.compare.weights.views import resized, turned

_COUNTS = (3, 2)  # parts of a fused tensor: q, k, v; k, v or gate, up
_HINTS = (re.compile(r"(^|_)(q|query|gate|w1)(_|\d|$)"), re.compile(r"(^|_)(k|key|up|w3)(_|\d|$)"), re.compile(r"v"))
_WHY = "found by values: {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """What is left over of one checkpoint."""

    cards: Sequence[SiteCard]
    tensors: Mapping[str, Tensor]

    def of(self, card: SiteCard) -> Tensor:
        return self.tensors[card.spot.site]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    whole: SiteCard
    parts: tuple[SiteCard, ...]
    layout: Layout


def fused_pairs(
    ours: Sequence[SiteCard], theirs: Sequence[SiteCard], baseline: Mapping[str, Tensor],
    candidate: Mapping[str, Tensor],
) -> list[Pair]:  # fmt: skip
    """Pair what is fused on one side and split on the other, and what is fused on both in another order.

    Args:
        ours: measured cards of the baseline's tensors that are left over.
        theirs: as `ours`, of the candidate.
        baseline: its tensors, to be read.
        candidate: as `baseline`.
    """
    sides = (
        _Side(cards=_telling(ours, baseline), tensors=baseline),
        _Side(cards=_telling(theirs, candidate), tensors=candidate),
    )
    pairs = [
        Pair(baseline=(found.whole.spot,), candidate=tuple(part.spot for part in found.parts), by="value",
             layout=found.layout, why=_WHY.format(_in_words(found)))
        for found in _split(sides[0], sides[1])
    ]  # fmt: skip
    pairs += [
        Pair(baseline=tuple(part.spot for part in found.parts), candidate=(found.whole.spot,), by="value",
             layout=found.layout, why=_WHY.format(_in_words(found)))
        for found in _split(sides[1], sides[0])
    ]  # fmt: skip
    used = {spot for pair in pairs for spot in (*pair.baseline, *pair.candidate)}
    left = [replace(side, cards=[card for card in side.cards if card.spot not in used]) for side in sides]
    return [*pairs, *_reordered(left[0], left[1])]


def _telling(cards: Sequence[SiteCard], tensors: Mapping[str, Tensor]) -> list[SiteCard]:
    """Cards of tensors that have values and a dimension along which they could be fused."""
    return [card for card in cards if card.shape and not isinstance(tensors[card.spot.site], Planned)]


def _in_words(found: _Found) -> str:
    names = ", ".join(part.spot.site.split(".")[-2 if "." in part.spot.site else -1] for part in found.parts)
    groups = found.layout.groups
    order = "one after another" if found.layout.kind == "concatenated" else f"in {groups} groups"
    return f"{names} lie {order}{', transposed' if found.layout.swapped else ''}"


def _split(wholes: _Side, parts: _Side) -> Iterator[_Found]:
    """Fused on the side of `wholes`, split on that of `parts`. No tensor is taken twice."""
    taken: set[object] = set()
    believed: list[Layout] = []  # orders that other tensors had: tried first
    families = _families(parts.cards)
    for whole in wholes.cards:
        groups = sorted(families, key=lambda group: numbers(group[0].spot.site) != numbers(whole.spot.site))
        found = next(
            (
                _Found(whole=whole, parts=chosen, layout=layout)
                for group in groups
                for chosen in _choices(whole, [card for card in group if card.spot not in taken])
                for layout in _orders_that_fit(wholes.of(whole), [parts.of(card) for card in chosen], believed)
            ),
            None,
        )
        if found is not None:
            taken.update(card.spot for card in found.parts)
            shape = Layout(kind=found.layout.kind, groups=found.layout.groups, swapped=found.layout.swapped)
            believed = [shape, *(layout for layout in believed if layout != shape)]
            yield found


def _families(cards: Sequence[SiteCard]) -> list[list[SiteCard]]:
    """Tensors whose names differ in one word, the last or the one before it: `attn.*.weight`, `attn.*`."""
    found: dict[tuple[int, tuple[str, ...]], list[SiteCard]] = defaultdict(list)
    for card in cards:
        words = tuple(card.spot.site.split("."))
        for at in (1, 2):
            if len(words) >= at:
                found[at, (*words[: len(words) - at], *words[len(words) - at + 1 :])].append(card)
    return [group for group in found.values() if len(group) > 1]


def _choices(whole: SiteCard, group: Sequence[SiteCard]) -> Iterator[tuple[SiteCard, ...]]:
    """Parts that can be what the whole holds, by their shapes and norms; those first whose names say so."""
    likely = sorted(group, key=_hint)
    for n in _COUNTS:
        for chosen in itertools.permutations(likely, n):
            norm = math.sqrt(sum(card.sumsq for card in chosen))
            is_alike = abs(math.sqrt(whole.sumsq) - norm) <= ALIKE * max(norm, math.sqrt(whole.sumsq))
            if sum(math.prod(card.shape) for card in chosen) == math.prod(whole.shape) and is_alike:
                yield chosen


def _hint(card: SiteCard) -> int:
    words = card.spot.site.lower().split(".")[-2:]
    return next((at for at, hint in enumerate(_HINTS) if any(hint.search(word) for word in words)), len(_HINTS))


def _orders_that_fit(whole: Tensor, parts: Sequence[Tensor], believed: Sequence[Layout]) -> Iterator[Layout]:
    """The layouts, first the believed ones, under which the whole has the values of the parts."""
    if any(len(part.shape) != len(whole.shape) for part in parts):
        return
    sizes = tuple(part.shape[0] for part in parts)
    for is_turned in (False, True) if len(whole.shape) == 2 else (False,):
        laid = turned(whole) if is_turned else whole
        if any(part.shape[1:] != laid.shape[1:] for part in parts) or sum(sizes) != laid.shape[0]:
            continue
        if sample_error([resized(laid, 0, 1)], [resized(parts[0], 0, 1)]) >= ALIKE:
            continue  # whatever the order, the whole begins with the first row of the first part
        likely = [Layout(kind=known.kind, dim=0, sizes=sizes, groups=known.groups, swapped=is_turned)
                  for known in believed if known.swapped == is_turned]  # fmt: skip
        every = orders(Layout(kind="concatenated", dim=0, sizes=sizes, groups=1, swapped=is_turned), sizes)
        yield from (layout for layout in (*likely, *every) if part_error(layout, whole, parts) < ALIKE)


def _reordered(ours: _Side, theirs: _Side) -> Iterator[Pair]:
    """Fused on both sides, in another order of its parts."""
    taken: set[object] = set()
    believed: list[Layout] = []  # of other tensors: a bias does not show what its parts are
    for mine in sorted(ours.cards, key=lambda card: -len(card.shape)):
        same = [card for card in theirs.cards if card.spot not in taken and _can_be(mine, card)]
        for yours in sorted(same, key=lambda card: numbers(card.spot.site) != numbers(mine.spot.site)):
            layout = _reordering(ours.of(mine), theirs.of(yours), believed)
            if layout is not None:
                believed = [layout, *(known for known in believed if known != layout)]
                taken.add(yours.spot)
                why = _WHY.format("fused on both sides, in another order")
                yield Pair(baseline=(mine.spot,), candidate=(yours.spot,), by="value", layout=layout, why=why)
                break


def _can_be(mine: SiteCard, yours: SiteCard) -> bool:
    a, b = math.sqrt(mine.sumsq), math.sqrt(yours.sumsq)
    return sorted(mine.shape) == sorted(yours.shape) and abs(a - b) <= ALIKE * max(a, b)


def _reordering(mine: Tensor, yours: Tensor, believed: Sequence[Layout]) -> Layout | None:
    """The order of the candidate's, and of what parts, if that makes the two equal."""
    is_matrix = len(mine.shape) == 2
    for is_turned, dim in itertools.product((False, True), (0, 1)) if is_matrix else ((False, 0),):
        laid = turned(mine) if is_turned else mine
        if laid.shape != yours.shape or sample_error([resized(laid, dim, 1)], [resized(yours, dim, 1)]) >= ALIKE:
            continue
        likely = [replace(known, swapped=is_turned, dim=dim) for known in believed]
        every = (layout for sizes in _sizes(yours, dim) for layout in _reorderings(sizes, dim, is_turned))
        fitting = (layout for layout in (*likely, *every) if reordering_error(layout, mine, yours) < ALIKE)
        if (found := next(fitting, None)) is not None:
            return found
    return None


def _reorderings(sizes: tuple[int, ...], dim: int, is_turned: bool) -> Iterator[Layout]:
    for order in orders(Layout(kind="concatenated", dim=dim, sizes=sizes, groups=1, swapped=is_turned), sizes):
        if order.kind == "interleaved":
            yield from (order, replace(order, kind="concatenated"))


def _sizes(fused: Tensor, dim: int) -> Iterator[tuple[int, ...]]:
    """What parts it may have: three alike; a query as wide as the input and two that are alike; two alike."""
    total, width = fused.shape[dim], fused.shape[1 - dim] if len(fused.shape) == 2 else 0
    if total % 3 == 0:
        yield (total // 3,) * 3
    rest = total - width
    if 0 < rest < 2 * width and rest % 2 == 0:
        yield (width, rest // 2, rest // 2)
    if total % 2 == 0:
        yield (total // 2,) * 2
