"""Rows of the checklist about the real batches of both sides, and a few samples to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from hypocenter.catalogue import Catalogue, having
from hypocenter.checklist.checklist import Remark, Row, Verdict
from hypocenter.checklist.configuration import Configuration
from hypocenter.checklist.data import in_order
from hypocenter.checklist.data.seen import Check, Seen
from hypocenter.checklist.data.side import Side, side_of
from hypocenter.checklist.data.tokenizer import Tokenizer
from hypocenter.checklist.items.item import Item, Items
from hypocenter.record.reader import RecordedRun

CHECKS: Catalogue[ModuleType] = Catalogue("hypocenter.checklist.data", entry=having("item"))
_SAMPLES, _TOKENS = 3, 48  # that are shown of each side
_NOTHING = "no batches were kept: record with --save-batches 4"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfBatches:
    """What the batches add to a checklist."""

    rows: tuple[Row, ...] = ()
    samples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def of_batches(
    runs: tuple[RecordedRun | None, RecordedRun | None],
    configurations: tuple[Configuration, Configuration],
    items: Items,
    tokenizer: Tokenizer | None = None,
) -> OfBatches:
    """All checks on the batches of two sides.

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
    """Both sides with what the loss asks for, or, where one side's was not seen, both with labels alone."""
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
    found = in_order.compared((one.directory, other.directory), (mine, theirs))
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
