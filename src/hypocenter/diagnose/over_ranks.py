"""Rules over ranks, asked of the panels of a recording's steps: of all steps where ranks are not alike, else of few.

Such rules look at all ranks, and back at earlier steps; but none knows another. So it is the rules that are parted
among workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hypocenter.catalogue import Broken
from hypocenter.detect.group_engine import CATALOGUE, GroupEngine, GroupRule, group_rules
from hypocenter.diagnose.panels import of_ranks, panels_of
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.nouns import Finding
from hypocenter.record.reader import RecordedRun

if TYPE_CHECKING:
    from hypocenter.diagnose.partial import Partial

_Codes = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What some rules found, each finding with its step and its code."""

    found: list[tuple[int, str, Finding]]
    broken: list[Broken]


def rules_over_ranks(recorded: RecordedRun, plugins: Sequence[str] = ()) -> GroupEngine:
    """Return the rules over ranks to ask of a recording."""
    return GroupEngine(group_rules(plugins), len(recorded.ranks))


def found_over_ranks(
    recorded: RecordedRun, plugins: tuple[str, ...], seen: Partial, records: Records
) -> Iterator[Finding]:
    """Yield what rules over ranks find, by step.

    Args:
        recorded: an open recording.
        plugins: files or modules with more rules.
        seen: what came of its ranks, all together.
        records: of its steps.
    """
    rules = rules_over_ranks(recorded, plugins)
    if seen.sketch is None or not rules.reads or ("always" not in rules.asked and seen.sketch.is_alike):
        yield from _of_few_steps(recorded, rules, seen, records)
        return
    if recorded.workers is None:
        yield from (each for _, _, each in found_by(recorded, tuple(rules.rules), records, plugins))
        return
    parts = parted(rules.rules, recorded.workers.n)
    answers = list(recorded.over(parts, partial(_look, plugins=plugins)))
    CATALOGUE.learn(broken for answer in answers for broken in answer.broken)
    found = [each for answer in answers for each in answer.found]
    yield from (each for _, _, each in sorted(found, key=lambda each: each[:2]))


def parted(rules: Mapping[str, GroupRule], n: int) -> list[_Codes]:
    """Divide rules into at most n parts that take about as long; rules that read the same share a part."""
    alike: dict[frozenset[str], list[GroupRule]] = defaultdict(list)
    for each in rules.values():
        if each.check is not None:
            alike[frozenset(each.reads)].append(each)
    parts: list[tuple[int, list[str]]] = [(0, []) for _ in range(n)]
    for group in sorted(alike.values(), key=lambda group: (-_weight(group), group[0].code)):
        weight, codes = parts.pop(0)
        parts.append((weight + _weight(group), [*codes, *(rule.code for rule in group)]))
        parts.sort(key=lambda part: part[0])
    return [tuple(sorted(codes)) for _, codes in parts if codes]


def _weight(rules: Sequence[GroupRule]) -> int:
    """Return a measure of the work: what each rule reads has to be brought together, at all steps or at few."""
    at_all = {word for rule in rules if rule.asked != "rows" for word in rule.reads}
    return len(at_all) ** 2 + len(rules)


def _look(recorded: RecordedRun, codes: _Codes, *, plugins: tuple[str, ...]) -> _Answer:
    """Ask some rules, in a worker process."""
    found = list(found_by(recorded, codes, Records.of(recorded), plugins))
    return _Answer(found=found, broken=list(CATALOGUE.broken))


def found_by(
    recorded: RecordedRun, codes: _Codes, records: Records, plugins: tuple[str, ...] = ()
) -> Iterator[tuple[int, str, Finding]]:
    """Yield what some rules find at all steps, with step and code; they see what all rules ask for."""
    rules, n_ranks = rules_over_ranks(recorded, plugins), len(recorded.ranks)
    engines = {code: GroupEngine({code: rules.rules[code]}, n_ranks) for code in codes}
    rows = RowsByStep(n_ranks)
    for _, table in recorded.scan(partial(of_ranks, reads=rules.reads)):
        rows.put(table)
    for panel in panels_of(rows, records, ranks=recorded.ranks, places=recorded.places):
        for code, each in engines.items():
            yield from ((panel.step, code, finding) for finding in each.feed(panel))
    rows.close()


def _of_few_steps(recorded: RecordedRun, rules: GroupEngine, seen: Partial, records: Records) -> Iterator[Finding]:
    rows = RowsByStep(len(recorded.ranks))
    for table in seen.aside:
        rows.put(table)
    steps = {*rows.steps(), *records.steps()[:1].tolist()}
    for panel in panels_of(rows, records, ranks=recorded.ranks, places=recorded.places, steps=steps):
        yield from rules.feed(panel, ("rows", "always"))
    rows.close()
