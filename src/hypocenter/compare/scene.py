"""The step of the first difference by itself: what the worst rows over all steps no longer show."""

from __future__ import annotations

from dataclasses import dataclass

from hypocenter.compare.cards import Deck, deck
from hypocenter.compare.comparison import Comparison, RowComparison, SiteCard
from hypocenter.compare.options import Options
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.walk import Walk
from hypocenter.compare.worst import Worst
from hypocenter.record.reader import RecordedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a page shows beside the answer."""

    step: int | None = None  # of the baseline; None: nothing to look at by itself
    rows: tuple[RowComparison, ...] = ()  # of that step, the worst micro-batch of each pair, in the order of the pairs
    cards: tuple[tuple[SiteCard, ...], tuple[SiteCard, ...]] = ((), ())  # all spots of both runs, in execution order


def scene_of(found: Comparison, baseline: RecordedRun, candidate: RecordedRun, options: Options | None = None) -> Scene:
    """Read both recordings again up to the step of the first difference, and keep its rows.

    Args:
        found: what `compare_runs` said of these runs with these options.

    Raises:
        HypocenterError: a recording cannot be read.
    """
    decks = deck(baseline), deck(candidate)
    cards = decks[0].cards, decks[1].cards
    if found.first is None:
        return Scene(cards=cards)
    step = found.first.row.step if found.first.row is not None else found.first.step
    pairs = found.matching.pairs
    walk = Walk(
        runs=(baseline, candidate), decks=decks, pairs=pairs, shift=shift_between(baseline, candidate),
        options=options or Options(),
    )  # fmt: skip
    worst = Worst(pairs)
    for judged in walk:  # from the start: what is noise is learnt on the way
        if judged.aligned.step == step:
            worst.take(judged)
            break
    return Scene(step=step, rows=tuple(worst.rows(_shapes(found, decks))), cards=cards)


def _shapes(found: Comparison, decks: tuple[Deck, Deck]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    mine, other = (deck.by_spot for deck in decks)
    return [(mine[pair.baseline[0]].shape, other[pair.candidate[0]].shape) for pair in found.matching.pairs]
