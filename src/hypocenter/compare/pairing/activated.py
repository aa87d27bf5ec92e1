"""Linears that hold their activation: what they give is what the activation gives, where a plain linear gives what goes
into it. MindSpore's `Dense(activation=...)` does so, and the Linear of MindFormers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypocenter.compare.comparison import SiteCard, Spot
from hypocenter.compare.pairing.layouts import is_parameter
from hypocenter.compare.pairing.ports import direction

_LINEARS = ("Dense", "Linear")
_INSIDE = ".activation"


def given_by_activations(ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> tuple[set[Spot], set[Spot]]:
    """Spots that are no counterpart of a plain linear's of the same name; none where both runs have such linears."""
    found = _given(ours), _given(theirs)
    return (set(), set()) if all(found) else found


def _given(cards: Iterable[SiteCard]) -> set[Spot]:
    cards = [card for card in cards if not is_parameter(card)]
    kinds = {card.spot.site: card.module for card in cards}
    holders = {site.removesuffix(_INSIDE) for site in kinds if site.endswith(_INSIDE)}
    linears = {site for site in holders if kinds.get(site) in _LINEARS}
    return {card.spot for card in cards if card.spot.site in linears and direction(card.spot.port).endswith("out")}
