"""Spots that nothing pairs, but whose tensor is seen at a paired spot of their own run too: they join that pair.

What a module gives is what the next one takes, and a module may be given what the one around it was given. Where one
network has a module that the other has not (Megatron's `core_attention`, an activation that is a function elsewhere),
its output is paired all the same: with what the counterpart of the next module takes in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hypocenter.compare.comparison import Layout, Pair, SiteCard, Spot
from hypocenter.compare.pairing.ports import direction
from hypocenter.compare.pairing.sameness import is_telling

_PHASES = ("forward", "backward")
Shape = tuple[int, ...]
_PLAIN = ("identity", "swapped", "copies")  # layouts that a further copy keeps


def with_copies(pairs: Sequence[Pair], ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> list[Pair]:
    """Return the pairs, with copies of a tensor added on one side of a pair, never on both.

    Args:
        pairs: of all matchers.
        ours: all spots of the baseline, in execution order.
        theirs: all spots of the candidate, as `ours`.
    """
    shapes = tuple({card.spot: card.shape for card in cards} for cards in (ours, theirs))
    takes_copies = [_takes_copies(pair, *shapes) for pair in pairs]
    sides = _claims(pairs, ours, 0, takes_copies), _claims(pairs, theirs, 1, takes_copies)
    found = list(pairs)
    for side, claims in enumerate(sides):
        for number in claims.keys() - sides[1 - side].keys():
            found[number] = _joined(found[number], side, claims[number])
    return found


def without_copies(pair: Pair) -> Pair:
    """Return the pair as a matcher gave it: without the copies that joined, which have another port."""
    first = pair.baseline[0].port, pair.candidate[0].port
    sides = [
        tuple(spot for spot in spots if spot.port == port)
        for spots, port in zip((pair.baseline, pair.candidate), first, strict=True)
    ]
    if (pair.baseline, pair.candidate) == tuple(sides) or pair.layout.kind != "copies":
        return pair
    layout = pair.layout
    if len(sides[0]) == len(sides[1]) == 1:
        layout = replace(layout, kind="swapped" if layout.swapped else "identity")
    return replace(pair, baseline=sides[0], candidate=sides[1], layout=layout)


def _claims(
    pairs: Sequence[Pair], cards: Sequence[SiteCard], side: int, takes_copies: Sequence[bool]
) -> dict[int, list[Spot]]:
    """Return the spots of one run that are in no pair, by the number of the pair that they join as copies."""
    number_of = {spot: i for i, pair in enumerate(pairs) for spot in (pair.baseline, pair.candidate)[side]}
    same: dict[object, list[SiteCard]] = defaultdict(list)
    for card in cards:
        number = number_of.get(card.spot)
        if (
            number is not None
            and takes_copies[number]
            and len((pairs[number].candidate, pairs[number].baseline)[side]) == 1
        ):
            same[_tensor(card)].append(card)
    found: dict[int, list[Spot]] = defaultdict(list)
    for card in cards:
        if card.spot not in number_of and card.sketch and card.spot.phase in _PHASES and is_telling(card):
            nearest = _nearest(card, same.get(_tensor(card), ()))
            if nearest is not None:
                found[number_of[nearest.spot]].append(card.spot)
    return found


def _takes_copies(pair: Pair, ours: Mapping[Spot, Shape], theirs: Mapping[Spot, Shape]) -> bool:
    """Return whether further copies of its tensor can be compared as the pair is."""
    if pair.baseline[0].phase not in _PHASES:
        return False
    a, b = ours[pair.baseline[0]], theirs[pair.candidate[0]]
    same_rows = pair.layout.kind == "reshaped" and len(a) > 1 and len(b) > 1 and a[-1] == b[-1]
    return pair.layout.kind in _PLAIN or same_rows


def _tensor(card: SiteCard) -> object:
    """Return a key that is equal for two spots of one run when both saw the same tensor."""
    return card.spot.phase, card.dtype, card.shape, card.n, card.sumsq, card.absmax, card.sketch


def _nearest(card: SiteCard, others: Iterable[SiteCard]) -> SiteCard | None:
    others = list(others)
    handed_on = [other for other in others if _is_handed_on(card, other)]
    handed_on = handed_on or [other for other in others if _is_handed_in(card, other)]
    return min(handed_on, key=lambda other: (abs(other.order - card.order), other.order), default=None)


def _is_handed_on(a: SiteCard, b: SiteCard) -> bool:
    """Return whether one is the output of a module, and the other the input of a later one."""
    ways = direction(a.spot.port), direction(b.spot.port)
    if a.spot.phase == "backward":
        return set(ways) == {"grad_in", "grad_out"}
    first, second = (a, b) if ways == ("out", "in") else (b, a)
    return set(ways) == {"in", "out"} and first.order < second.order


def _is_handed_in(a: SiteCard, b: SiteCard) -> bool:
    """Return whether both are inputs, or both outputs, of a module and of one inside it."""
    ways = direction(a.spot.port), direction(b.spot.port)
    sites = a.spot.site, b.spot.site
    return ways[0] == ways[1] and (_is_around(*sites) or _is_around(*sites[::-1]))


def _is_around(outer: str, inner: str) -> bool:
    return inner.startswith(f"{outer}." if outer else "") and inner != outer


def _joined(pair: Pair, side: int, spots: Sequence[Spot]) -> Pair:
    layout = Layout(kind="copies", swapped=pair.layout.swapped)
    port = (pair.baseline, pair.candidate)[side][0].port
    spots = sorted(spots, key=lambda spot: spot.port != port)  # as a map that is drafted from the pairs has them
    names = ", ".join(f"{spot.site} {spot.port}" for spot in spots)
    found = replace(
        pair, layout=layout, why=f"{pair.why}; {names} {'is' if len(spots) == 1 else 'are'} the same tensor"
    )
    if side == 0:
        return replace(found, baseline=(*pair.baseline, *spots))
    return replace(found, candidate=(*pair.candidate, *spots))
