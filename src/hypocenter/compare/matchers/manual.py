"""Spots that the user's map pairs. They always win: shapes that do not fit are not a reason to leave them out."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hypocenter.compare.comparison import Layout, Pair, SiteCard, Spot
from hypocenter.compare.pairing.chain import Task, matcher
from hypocenter.compare.pairing.fusing import Fusion, fused_layout
from hypocenter.compare.pairing.layouts import layout_of
from hypocenter.compare.pairing.manual_map import ManualMap, ManualPair
from hypocenter.errors import ConfigError, UnknownNameError

_Key = tuple[str, str, int]  # phase, port, call
_Sites = dict[str, dict[_Key, SiteCard]]


@matcher("manual", order=10)
def pair(task: Task) -> Iterator[Pair]:
    """Pair what the map says, spot by spot."""
    if task.manual is None:
        return
    ours, theirs = _by_site(task.all_baseline), _by_site(task.all_candidate)
    _require_known(task.manual, ours, theirs)
    used: set[tuple[str, Spot]] = set()
    for entry in task.manual.pairs:
        for found in _pairs(entry, ours, theirs):
            spots = {*(("ours", spot) for spot in found.baseline), *(("theirs", spot) for spot in found.candidate)}
            for twice in used & spots:
                _refuse(twice[1], task.manual.path)
            used |= spots
            yield found


def _pairs(entry: ManualPair, ours: _Sites, theirs: _Sites) -> Iterator[Pair]:
    first = [ours[site] for site in entry.baseline], [theirs[site] for site in entry.candidate]
    for key in first[0][0]:
        phase, port, call = key
        other = entry.ports.get(port) if entry.ports else port
        if other is None:
            continue
        mine = [cards.get(key) for cards in first[0]]
        yours = [cards.get((phase, other, call)) for cards in first[1]]
        if all(mine) and all(yours):
            yield _pair(entry, [card for card in mine if card], [card for card in yours if card])


def _pair(entry: ManualPair, ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> Pair:
    return Pair(
        baseline=tuple(card.spot for card in ours),
        candidate=tuple(card.spot for card in theirs),
        by="manual",
        layout=_layout(entry, ours, theirs),
        why="as the map says",
    )


def _layout(entry: ManualPair, ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> Layout:
    seen = layout_of(ours[0], theirs[0], padding=True)
    if len(ours) == len(theirs) == 1:
        if not entry.layout:
            return seen or Layout()
        if seen and seen.kind == entry.layout:
            return replace(seen, swapped=seen.swapped or entry.swapped)
        return Layout(kind=entry.layout, swapped=entry.swapped or entry.layout == "swapped", groups=entry.groups)
    whole, parts = (ours[0], theirs) if len(ours) == 1 else (theirs[0], ours)
    if entry.layout == "copies" or (not entry.layout and _is_copied(whole, parts)):
        return Layout(kind="copies", swapped=entry.swapped or bool(seen and seen.swapped))
    order = "interleaved" if entry.layout == "interleaved" else "concatenated"
    fusion = Fusion(order=order, groups=entry.groups, why="")
    return fused_layout(whole, parts, fusion) or Layout(kind=order, groups=entry.groups, swapped=entry.swapped)


def _is_copied(whole: SiteCard, parts: Iterable[SiteCard]) -> bool:
    return all(layout_of(whole, part) is not None for part in parts)


def _by_site(cards: Iterable[SiteCard]) -> _Sites:
    found: _Sites = defaultdict(dict)
    for card in cards:
        found[card.spot.site][(card.spot.phase, card.spot.port, card.spot.call)] = card
    return dict(found)


def _require_known(manual: ManualMap, ours: _Sites, theirs: _Sites) -> None:
    unknown = [
        (side, site, known)
        for entry in manual.pairs
        for side, sites, known in (("baseline", entry.baseline, ours), ("candidate", entry.candidate, theirs))
        for site in sites
        if site not in known
    ]
    if not unknown:
        return
    side, site, known = unknown[0]
    near = difflib.get_close_matches(site, known, n=1, cutoff=0.0)
    more = f" (and {len(unknown) - 1} more of the map)" if len(unknown) > 1 else ""
    raise UnknownNameError(
        f"the {side} has no site {site!r}{more}",
        where=manual.path or "map",
        fix=f"did you mean {near[0]!r}?" if near else "hypocenter show RUN lists the sites",
    )


def _refuse(spot: Spot, path: str) -> None:
    raise ConfigError(
        f"the map pairs {spot.site!r} {spot.port} twice", where=path or "map", fix="keep one of the two [[pair]]"
    )
