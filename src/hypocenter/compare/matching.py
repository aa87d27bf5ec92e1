"""Two runs' spots in, a Matching out: the chain of matchers, each for what those before left over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hypocenter.compare.comparison import Matching, Pair, SiteCard, Spot
from hypocenter.compare.pairing.activated import given_by_activations
from hypocenter.compare.pairing.chain import CATALOGUE, Matcher, Task, matchers
from hypocenter.compare.pairing.copies import with_copies
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.errors import HypocenterError
from hypocenter.record.facts_file import Facts

_BY_HAND = "manual"


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
    """What a matcher gives, less what it may not give: spots that are not left over, or that it gave before."""
    try:
        return list(_disjoint(entry.pair(task), task))
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
