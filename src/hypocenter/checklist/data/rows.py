"""Rows of the checklist about the real batches of both sides, and a few samples to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np

from hypocenter.catalogue import Catalogue, having
from hypocenter.checklist.checklist import Configuration, Remark, Row, Verdict
from hypocenter.checklist.data.side import Check, Seen, Side, side_of
from hypocenter.checklist.data.tokenizer import Tokenizer
from hypocenter.checklist.items.item import Item, Items
from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.record.reader import RecordedRun

CHECKS: Catalogue[ModuleType] = Catalogue("hypocenter.checklist.data", entry=having("item"))
_SAMPLES, _TOKENS = 3, 48  # that are shown of each side
_NOTHING = "no batches were kept: record with --save-batches 4"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfBatches:
    """What the batches of both sides add to a checklist."""

    rows: tuple[Row, ...] = ()
    samples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def of_batches(
    runs: tuple[RecordedRun | None, RecordedRun | None],
    configurations: tuple[Configuration, Configuration],
    items: Items,
    tokenizer: Tokenizer | None = None,
) -> OfBatches:
    """Make all checks on the batches of two sides.

    Args:
        runs: the sides' recordings; None where a side is not recorded.
        configurations: what they say of the vocabulary and of special ids.
        items: where titles and reasons of the rows come from (data.batches, data.ids_in_range, ...).
        tokenizer: whose special ids the data must have, and which decodes samples.
    """
    special = tokenizer.special if tokenizer is not None else {}
    sides = tuple(
        replace(side_of(name, run, configuration), tokenizer=special) if run is not None else None
        for name, run, configuration in zip(("baseline", "candidate"), runs, configurations, strict=True)
    )
    alike = _seen_alike(sides)
    rows = [*_in_order(runs, sides, items)]
    if any(side is not None and side.batches for side in sides):
        rows += [
            _row(items.by_key[each.item], _seen(each.look, alike[0]), _seen(each.look, alike[1]))
            for each in CHECKS.in_order()
        ]
    return OfBatches(rows=tuple(rows), samples=tuple(_samples(sides, tokenizer)), notes=tuple(_notes(sides, tokenizer)))


def _seen_alike(sides: Sequence[Side | None]) -> list[Side | None]:
    """Return both sides with what the loss asks for; both with labels alone where one side's was not seen."""
    told = [side is not None and any(batch.target is not None for batch in side.batches) for side in sides]
    if None in sides or all(told) or not any(told):
        return list(sides)
    return [
        replace(side, batches=tuple(replace(batch, target=None) for batch in side.batches)) if side else None
        for side in sides
    ]


def _seen(check: Check, side: Side | None) -> Seen | None:
    if side is None:
        return None
    return check(side) if side.batches else Seen(value=None, why=_NOTHING)


def _row(item: Item, one: Seen | None, other: Seen | None, known: Verdict | None = None) -> Row:
    found = [seen.value if seen is not None else None for seen in (one, other)]
    verdict: Verdict
    if found[0] is None or found[1] is None:
        verdict = "only-baseline" if found[0] else "only-candidate" if found[1] else "cannot-tell"
    else:
        verdict = known or ("same" if found[0] == found[1] else "different")
    reasons = [seen.why for seen in (one, other) if seen is not None and seen.why]
    if verdict == "different":
        reasons.insert(0, item.why)
    return Row(
        item=item.key, title=item.title, group=item.group, baseline=found[0], candidate=found[1], verdict=verdict,
        severity=item.importance, why="; ".join(dict.fromkeys(reasons)),
        fix=item.fix if verdict == "different" else "", remarks=tuple(_remarks(item, one, other)),
    )  # fmt: skip


def _remarks(item: Item, *seen: Seen | None) -> Iterator[Remark]:
    for name, one in zip(("baseline", "candidate"), seen, strict=True):
        if one is not None and one.fault:
            yield Remark(side=name, severity=item.importance, text=one.fault, fix=one.fix)


def _in_order(
    runs: tuple[RecordedRun | None, RecordedRun | None], sides: tuple[Side | None, ...], items: Items
) -> Iterator[Row]:
    (one, other), (mine, theirs) = runs, sides
    if one is None or other is None or mine is None or theirs is None:
        return
    found = order_of_samples((one.directory, other.directory), (mine, theirs))
    yield _row(items.by_key["data.batches"], found.baseline, found.candidate, found.verdict)


def _samples(sides: tuple[Side | None, ...], tokenizer: Tokenizer | None) -> Iterator[str]:
    for side in sides:
        for batch in side.batches[:1] if side is not None else ():
            for index, ids in enumerate(batch.ids[:_SAMPLES].tolist()):
                shown = ids[:_TOKENS]
                text = tokenizer.decode(shown) if tokenizer is not None else None
                cut = " ..." if len(ids) > len(shown) else ""
                words = " ".join(map(str, shown)) if text is None else text
                yield f"{side.name if side else ''}, step {batch.step}, sample {index}: {words}{cut}"


def _notes(sides: tuple[Side | None, ...], tokenizer: Tokenizer | None) -> Iterator[str]:
    for side in sides:
        if side is not None:
            yield from (f"{side.name}: {problem}" for problem in side.problems)
            if not side.batches:
                yield f"{side.name}: {_NOTHING}"
    if tokenizer is not None and tokenizer.why_not:
        yield f"samples are shown as ids: {tokenizer.why_not}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """What each side has; `verdict` None: it cannot be told."""

    baseline: Seen
    candidate: Seen
    verdict: Literal["same", "equivalent", "different"] | None


def by_digests(baseline: Path, candidate: Path) -> SampleOrder | None:
    """Compare all steps of two recordings; None where their digests are not of the same inputs."""
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
    return SampleOrder(
        baseline=Seen(value=one[differ[0]], why=why),
        candidate=Seen(value=other[differ[0]], why=why),
        verdict="different",
    )


def by_samples(baseline: Side, candidate: Side) -> SampleOrder:
    """Compare steps whose batches were kept, whatever their arguments' names and their layout over ranks."""
    one, other = _samples_by_step(baseline), _samples_by_step(candidate)
    both = sorted(one.keys() & other.keys())
    if not both:
        nothing = Seen(value=None, why="no digests of the same inputs, and no step whose batches both sides kept")
        return SampleOrder(baseline=nothing, candidate=nothing, verdict=None)
    differ = [step for step in both if one[step] != other[step]]
    if not differ:
        return _same(len(both), "steps were kept on both sides, each with the same samples in the same order")
    step = differ[0]
    if all(sorted(one[step]) == sorted(other[step]) for step in differ):
        why = f"the same samples in each of {len(both):,} steps, in {len(differ):,} of them in another order"
        seen = Seen(value=f"{len(both):,} steps", why=why)
        return SampleOrder(baseline=seen, candidate=seen, verdict="equivalent")
    again = next((s for s, rows in sorted(one.items()) if sorted(rows) == sorted(other[step])), None)
    where = f"the baseline has them at step {again}" if again is not None else "the baseline never has them"
    why = f"{len(differ):,} of {len(both):,} kept steps have other samples, the first is step {step}: {where}"
    return _different(len(differ), len(both), "kept steps", why)


def order_of_samples(runs: tuple[Path, Path], sides: tuple[Side, Side]) -> SampleOrder:
    """Compare by digests where that is possible; say if they differ although the inputs do not."""
    found, kept = by_digests(*runs), by_samples(*sides)
    if found is None:
        return kept
    if found.verdict == "different" and kept.verdict in ("same", "equivalent"):
        why = f"{kept.baseline.why}; what else is in the batches differs: labels, masks, positions"
        seen = Seen(value=kept.baseline.value, why=why)
        return SampleOrder(baseline=seen, candidate=seen, verdict="equivalent")
    return found


def _different(n: int, n_all: int, what: str, why: str) -> SampleOrder:
    mine, theirs = f"{n_all:,} {what}", f"{n:,} of them other"
    return SampleOrder(baseline=Seen(value=mine, why=why), candidate=Seen(value=theirs, why=why), verdict="different")


def _same(n: int, words: str) -> SampleOrder:
    seen = Seen(value=f"{n:,} steps", why=f"{n:,} {words}")
    return SampleOrder(baseline=seen, candidate=seen, verdict="same")


def _samples_by_step(side: Side) -> Mapping[int, list[bytes]]:
    """Return by step the samples of all ranks and micro-batches, in the order of ranks."""
    found: dict[int, list[bytes]] = {}
    for batch in sorted(side.batches, key=lambda batch: (batch.step, batch.microbatch, batch.rank)):
        found.setdefault(batch.step, []).extend(row.tobytes() for row in np.ascontiguousarray(batch.ids))
    return found
