"""Did two runs train on the same batches in the same order? By digests of every batch, or by those that were kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hypocenter.checklist.data.seen import Seen
from hypocenter.checklist.data.side import Side
from hypocenter.compare.curves.catalogue import read_curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What each side has; `verdict` None: it cannot be told."""

    baseline: Seen
    candidate: Seen
    verdict: Literal["same", "equivalent", "different"] | None


def by_digests(baseline: Path, candidate: Path) -> Order | None:
    """All steps of two recordings; None where their digests are not of the same inputs."""
    one, other = read_curve(baseline).digests, read_curve(candidate).digests
    both = sorted(one.keys() & other.keys())
    if not both or one[both[0]].partition("-")[0] != other[both[0]].partition("-")[0]:
        return None  # other argument names, or laid over other ranks
    differ = [step for step in both if one[step] != other[step]]
    if not differ:
        return _same(len(both), "steps, each with the same batches")
    again = next((step for step, digest in sorted(one.items()) if digest == other[differ[0]]), None)
    moved = f"the baseline has that batch at step {again}" if again is not None else "the baseline never has it"
    why = f"{len(differ):,} of {len(both):,} steps have another batch, the first is step {differ[0]}: {moved}"
    return Order(
        baseline=Seen(value=one[differ[0]], why=why),
        candidate=Seen(value=other[differ[0]], why=why),
        verdict="different",
    )


def by_samples(baseline: Side, candidate: Side) -> Order:
    """The steps whose batches were kept, whatever their arguments are called and however they lie over the ranks."""
    one, other = _samples(baseline), _samples(candidate)
    both = sorted(one.keys() & other.keys())
    if not both:
        nothing = Seen(value=None, why="no digests of the same inputs, and no step whose batches both sides kept")
        return Order(baseline=nothing, candidate=nothing, verdict=None)
    differ = [step for step in both if one[step] != other[step]]
    if not differ:
        return _same(len(both), "steps were kept on both sides, each with the same samples in the same order")
    step = differ[0]
    if all(sorted(one[step]) == sorted(other[step]) for step in differ):
        why = f"the same samples in each of {len(both):,} steps, in {len(differ):,} of them in another order"
        seen = Seen(value=f"{len(both):,} steps", why=why)
        return Order(baseline=seen, candidate=seen, verdict="equivalent")
    again = next((s for s, rows in sorted(one.items()) if sorted(rows) == sorted(other[step])), None)
    where = f"the baseline has them at step {again}" if again is not None else "the baseline never has them"
    why = f"{len(differ):,} of {len(both):,} kept steps have other samples, the first is step {step}: {where}"
    return _different(len(differ), len(both), "kept steps", why)


def compared(runs: tuple[Path, Path], sides: tuple[Side, Side]) -> Order:
    """By digests where they can be compared. Where they differ and the inputs do not, that is said."""
    found, kept = by_digests(*runs), by_samples(*sides)
    if found is None:
        return kept
    if found.verdict == "different" and kept.verdict in ("same", "equivalent"):
        why = f"{kept.baseline.why}; what else is in the batches differs: labels, masks, positions"
        seen = Seen(value=kept.baseline.value, why=why)
        return Order(baseline=seen, candidate=seen, verdict="equivalent")
    return found


def _different(n: int, n_all: int, what: str, why: str) -> Order:
    mine, theirs = f"{n_all:,} {what}", f"{n:,} of them other"
    return Order(baseline=Seen(value=mine, why=why), candidate=Seen(value=theirs, why=why), verdict="different")


def _same(n: int, words: str) -> Order:
    seen = Seen(value=f"{n:,} steps", why=f"{n:,} {words}")
    return Order(baseline=seen, candidate=seen, verdict="same")


def _samples(side: Side) -> Mapping[int, list[bytes]]:
    """By step the samples, of all ranks and micro-batches, in the order of ranks."""
    found: dict[int, list[bytes]] = {}
    for batch in sorted(side.batches, key=lambda batch: (batch.step, batch.microbatch, batch.rank)):
        found.setdefault(batch.step, []).extend(row.tobytes() for row in np.ascontiguousarray(batch.ids))
    return found
