"""Dumps without modules count the calls of each API: one call more slides all later ones, and their pairs say nothing.

Where the two sides have called an API another number of times nobody knows which call is which. Such spots are left
over on both sides, with a note.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypocenter.compare.comparison import Matching, SiteCard, Spot
from hypocenter.record.reader import RecordedRun

_Site = tuple[str, str]
_NAMED = 3  # APIs that the note names


def without_slid_calls(
    matching: Matching, runs: tuple[RecordedRun, RecordedRun], cards: tuple[Iterable[SiteCard], Iterable[SiteCard]]
) -> Matching:
    """The matching without pairs of APIs that were called another number of times.

    Args:
        matching: of the two runs.
        runs: baseline and candidate; of recordings of our own nothing is changed.
        cards: of all spots of both.
    """
    if any(run.run.imported is None for run in runs):
        return matching
    mine, other = ({card.spot: card for card in side} for side in cards)
    calls = _calls(mine.values()), _calls(other.values())
    slid = {site for site in calls[0].keys() & calls[1].keys() if calls[0][site] != calls[1][site]}
    if not slid:
        return matching
    kept = [pair for pair in matching.pairs if not any(_site(spot) in slid for spot in pair.baseline)]
    gone = [pair for pair in matching.pairs if any(_site(spot) in slid for spot in pair.baseline)]
    names = sorted({site for _, site in slid})
    shown = ", ".join(f"{name} ({_times(calls, name, slid)})" for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return replace(
        matching, pairs=tuple(kept),
        unmatched_baseline=(*matching.unmatched_baseline, *(mine[s] for p in gone for s in p.baseline)),
        unmatched_candidate=(*matching.unmatched_candidate, *(other[s] for p in gone for s in p.candidate)),
        notes=(*matching.notes, f"called another number of times, so that calls cannot be paired: {shown}{more}"),
    )  # fmt: skip


def _site(spot: Spot) -> _Site:
    return spot.phase, spot.site


def _calls(cards: Iterable[SiteCard]) -> dict[_Site, int]:
    """How often each API was called, by direction."""
    found: dict[_Site, int] = {}
    for card in cards:
        if card.spot.phase in ("forward", "backward") and not card.module and "." in card.spot.site:
            found[_site(card.spot)] = max(found.get(_site(card.spot), 0), card.spot.call + 1)
    return found


def _times(calls: tuple[dict[_Site, int], dict[_Site, int]], name: str, slid: set[_Site]) -> str:
    site = next(site for site in sorted(slid, reverse=True) if site[1] == name)
    return f"{calls[0][site]} and {calls[1][site]} times"
