"""Two runs' spots in, a Matching out: the chain of matchers, each for what those before left over.

Two kinds of pairs are left out. Linears that hold their activation (MindSpore's `Dense(activation=...)`, the Linear of
MindFormers) give what the activation gives, a plain linear what goes into it. And dumps without modules count the calls
of each API: where the two sides have called one another number of times, nobody knows which call is which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hypocenter.compare.comparison import Matching, Pair, SiteCard, Spot
from hypocenter.compare.pairing.chain import CATALOGUE, Matcher, Task, matchers
from hypocenter.compare.pairing.copies import with_copies
from hypocenter.compare.pairing.layouts import is_parameter
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.compare.pairing.ports import direction
from hypocenter.errors import HypocenterError
from hypocenter.in_words import some
from hypocenter.record.facts_file import Facts
from hypocenter.record.reader import RecordedRun

_BY_HAND = "manual"
_LINEARS = ("Dense", "Linear")
_INSIDE = ".activation"
_Site = tuple[str, str]
_NAMED = 3  # APIs that the note names


def match(
    baseline: Sequence[SiteCard],
    candidate: Sequence[SiteCard],
    manual: ManualMap | None = None,
    *,
    baseline_facts: Facts | None = None,
    candidate_facts: Facts | None = None,
    plugins: Iterable[str] = (),
) -> Matching:
    """Pair the spots of two runs. Nothing is guessed that is not unambiguous: what is left over is listed.

    Args:
        baseline: a card per spot; two of one spot count once.
        candidate: as `baseline`.
        manual: pairs that a person gave; they always win.
        baseline_facts: tell the number of attention heads where shapes do not.
        candidate_facts: as `baseline_facts`.
        plugins: further matchers: .py files or module names.

    Raises:
        UnknownNameError: the map names a site that neither run has.
        ConfigError: the map pairs a spot twice.
    """
    ours, theirs = _in_order(baseline), _in_order(candidate)
    pairs: list[Pair] = []
    notes: list[str] = []
    used: tuple[set[Spot], set[Spot]] = (set(), set())
    held = given_by_activations(ours, theirs)
    for entry in matchers(plugins):
        not_now = used if entry.name == _BY_HAND else (used[0] | held[0], used[1] | held[1])
        task = Task(
            baseline=tuple(card for card in ours if card.spot not in not_now[0]),
            candidate=tuple(card for card in theirs if card.spot not in not_now[1]),
            all_baseline=ours,
            all_candidate=theirs,
            pairs=tuple(pairs),
            manual=manual,
            baseline_facts=baseline_facts,
            candidate_facts=candidate_facts,
        )
        if task.baseline and task.candidate:
            found = _asked(entry, task, notes)
            pairs += found
            used[0].update(spot for pair in found for spot in pair.baseline)
            used[1].update(spot for pair in found for spot in pair.candidate)
    pairs = with_copies(pairs, ours, theirs)
    for side, of_side in enumerate(used):
        of_side.update(spot for pair in pairs for spot in (pair.baseline, pair.candidate)[side])
    left = [card for card in ours if card.spot not in used[0]], [card for card in theirs if card.spot not in used[1]]
    order = {card.spot: card.order for card in ours}
    return Matching(
        pairs=tuple(sorted(pairs, key=lambda pair: min(order[spot] for spot in pair.baseline))),
        unmatched_baseline=tuple(left[0]),
        unmatched_candidate=tuple(left[1]),
        notes=(*notes, *_same_name_other_shape(*left)),
    )


def _in_order(cards: Sequence[SiteCard]) -> tuple[SiteCard, ...]:
    first: dict[Spot, SiteCard] = {}
    for card in sorted(cards, key=lambda card: card.order):
        first.setdefault(card.spot, card)
    return tuple(first.values())


def _asked(entry: Matcher, task: Task, notes: list[str]) -> list[Pair]:
    """Return the pairs of a matcher, without spots that are not left over or that it gave before."""
    try:
        return list(_disjoint(list(entry.pair(task)), task))
    except HypocenterError:
        raise
    except Exception as error:  # a stranger's matcher is listed as broken, never fatal
        CATALOGUE.report(entry.name, error)
        notes.append(f"matcher {entry.name} failed and was left out: {type(error).__name__}: {error}")
        return []


def _disjoint(pairs: Iterable[Pair], task: Task) -> Iterator[Pair]:
    free = {card.spot for card in task.baseline}, {card.spot for card in task.candidate}
    for pair in pairs:
        sides = (pair.baseline, pair.candidate)
        sound = all(spots and set(spots) <= free[i] and len(set(spots)) == len(spots) for i, spots in enumerate(sides))
        if sound and min(len(pair.baseline), len(pair.candidate)) == 1:
            for i, spots in enumerate(sides):
                free[i].difference_update(spots)
            yield pair


def _same_name_other_shape(ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> Iterator[str]:
    other = {card.spot: card for card in theirs}
    odd = [(card, other[card.spot]) for card in ours if card.spot in other]
    if odd:
        a, b = odd[0]
        yield (
            f"{len(odd)} of the same name are not the same value, by shape or type; first {a.spot.site or 'the model'} "
            f"{a.spot.port}: {a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
        )


def given_by_activations(ours: Sequence[SiteCard], theirs: Sequence[SiteCard]) -> tuple[set[Spot], set[Spot]]:
    """Return outputs of linears that apply an activation themselves, unlike plain ones; none if both runs have such."""
    found = _given(ours), _given(theirs)
    return (set(), set()) if all(found) else found


def _given(cards: Iterable[SiteCard]) -> set[Spot]:
    cards = [card for card in cards if not is_parameter(card)]
    kinds = {card.spot.site: card.module for card in cards}
    holders = {site.removesuffix(_INSIDE) for site in kinds if site.endswith(_INSIDE)}
    linears = {site for site in holders if kinds.get(site) in _LINEARS}
    return {card.spot for card in cards if card.spot.site in linears and direction(card.spot.port).endswith("out")}


def without_slid_calls(
    matching: Matching, runs: tuple[RecordedRun, RecordedRun], cards: tuple[Iterable[SiteCard], Iterable[SiteCard]]
) -> Matching:
    """Return the matching without pairs of APIs that both runs called a different number of times.

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
    shown = some((f"{name} ({_times(calls, name, slid)})" for name in names), _NAMED)
    return replace(
        matching, pairs=tuple(kept),
        unmatched_baseline=(*matching.unmatched_baseline, *(mine[s] for p in gone for s in p.baseline)),
        unmatched_candidate=(*matching.unmatched_candidate, *(other[s] for p in gone for s in p.candidate)),
        notes=(*matching.notes, f"called another number of times, so that calls cannot be paired: {shown}"),
    )  # fmt: skip


def _site(spot: Spot) -> _Site:
    return spot.phase, spot.site


def _calls(cards: Iterable[SiteCard]) -> dict[_Site, int]:
    """Return how often each API was called, by direction."""
    found: dict[_Site, int] = {}
    for card in cards:
        if card.spot.phase in ("forward", "backward") and not card.module and "." in card.spot.site:
            found[_site(card.spot)] = max(found.get(_site(card.spot), 0), card.spot.call + 1)
    return found


def _times(calls: tuple[dict[_Site, int], dict[_Site, int]], name: str, slid: set[_Site]) -> str:
    site = next(site for site in sorted(slid, reverse=True) if site[1] == name)
    return f"{calls[0][site]} and {calls[1][site]} times"
