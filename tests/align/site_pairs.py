"""How many forward sites of the first steps of an alignment are paired, with no map of names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypocenter.align.alignment import Alignment
from hypocenter.compare.cards import cards
from hypocenter.compare.matching import match
from hypocenter.record.reader import open_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Inputs and outputs of modules on each side: how many of how many."""

    n_baseline: int
    of_baseline: int
    n_candidate: int
    of_candidate: int

    @property
    def share(self) -> float:
        """Of both sides together."""
        return (self.n_baseline + self.n_candidate) / (self.of_baseline + self.of_candidate)


def forward_sites(folder: Path, found: Alignment) -> Sites:
    """Of the recordings that stage 2 rests on; `folder` is the plan's."""
    paths = [folder / path for path in found.stages[2].runs]
    sides = [
        next(path for path in paths if path.name.startswith(f"{side}-steps")) for side in ("baseline", "candidate")
    ]
    mine, other = (open_run(path) for path in sides)
    ours, theirs = cards(mine), cards(other)
    matched = match(ours, theirs, None, baseline_facts=mine.facts(), candidate_facts=other.facts())
    left = {card.spot for card in matched.unmatched_baseline}, {card.spot for card in matched.unmatched_candidate}
    counted = [
        (sum(card.spot not in lone for card in of), len(of))
        for of, lone in zip(
            ([c for c in side if c.spot.phase == "forward"] for side in (ours, theirs)), left, strict=True
        )
    ]
    return Sites(
        n_baseline=counted[0][0], of_baseline=counted[0][1], n_candidate=counted[1][0], of_candidate=counted[1][1]
    )
