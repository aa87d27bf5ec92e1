"""Spots that have the same name in both runs, and shapes that can be the same value."""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.compare.comparison import Layout, Pair
from hypocenter.compare.naming.canonical import sounds_like_vocabulary
from hypocenter.compare.pairing.chain import Task, matcher
from hypocenter.compare.pairing.layouts import layout_of


@matcher("exact", order=20)
def pair(task: Task) -> Iterator[Pair]:
    """Pair what has the same phase, site, port and call."""
    theirs = {card.spot: card for card in task.candidate}
    for ours in task.baseline:
        other = theirs.get(ours.spot)
        if other is None:
            continue
        is_alike = (ours.shape, ours.dtype, ours.module) == (other.shape, other.dtype, other.module)
        layout = Layout() if is_alike else layout_of(ours, other, padding=sounds_like_vocabulary(ours.spot.site))
        if layout:
            yield Pair(baseline=(ours.spot,), candidate=(other.spot,), by="exact", layout=layout, why="same name")
