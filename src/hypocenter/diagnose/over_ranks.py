"""Rules over ranks, asked of the panels of a recording's steps.

Most look at whether ranks are alike: they are asked at all steps, of the ranks that are not. Others look at few steps,
of all ranks. Such rules look back at earlier steps; but none knows another, so it is the rules that are parted among
workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hypocenter.catalogue import Broken
from hypocenter.detect.group_engine import CATALOGUE, Asked, GroupEngine, GroupReads, GroupRule, group_rules
from hypocenter.detect.panel import OF_ONE_RANK
from hypocenter.diagnose.panels import among, of_ranks, panels_of
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.nouns import Finding
from hypocenter.record.reader import RecordedRun, ranked
from hypocenter.record.schema import READINGS

if TYPE_CHECKING:
    from hypocenter.diagnose.partial import Partial

_Codes = tuple[str, ...]
_Found = Iterator[tuple[int, str, Finding]]


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
    rules = rules_over_ranks(recorded, plugins).rules
    by: dict[str, list[str]] = defaultdict(list)  # how they are asked -> codes
    for code, rule in rules.items():
        if rule.check is not None:
            by[_way(rule, seen)].append(code)
    ranks = recorded.ranks if seen.sketch is None or not by["unlike"] else seen.sketch.suspects
    found = [
        *_of_few_steps(recorded, by["rows"], plugins, seen, records),
        *_of_all_steps(recorded, by["always"], plugins, records, recorded.ranks),
        *_of_all_steps(recorded, by["unlike"], plugins, records, ranks),
    ]
    order = {code: number for number, code in enumerate(rules)}
    yield from (each for *_, each in sorted(found, key=lambda each: (each[0], order[each[1]])))


def _way(rule: GroupRule, seen: Partial) -> Asked:
    if seen.sketch is None:
        return "rows"
    if rule.asked == "rows" and "law" in rule.reads and seen.sketch.breaks_own_law:
        return "always"  # its rows were not put aside
    return rule.asked


def parted(rules: Mapping[str, GroupRule], n: int) -> list[_Codes]:
    """Divide rules into at most n parts that take about as long; rules that follow the same things share a part."""
    together: dict[str, list[GroupRule]] = defaultdict(list)
    for each in rules.values():
        if each.check is not None:
            together[each.beside or each.code].append(each)
    parts: list[tuple[int, list[str]]] = [(0, []) for _ in range(n)]
    for group in sorted(together.values(), key=lambda group: (-_weight(group), group[0].code)):
        weight, codes = parts.pop(0)
        parts.append((weight + _weight(group), [*codes, *(rule.code for rule in group)]))
        parts.sort(key=lambda part: part[0])
    return [tuple(sorted(codes)) for _, codes in parts if codes]


def _weight(rules: Sequence[GroupRule]) -> int:
    """Return a measure of the work."""
    return sum(len(rule.reads) for rule in rules)


def _of_all_steps(
    recorded: RecordedRun, codes: Sequence[str], plugins: tuple[str, ...], records: Records, ranks: Sequence[int]
) -> _Found:
    if not codes or not ranks:
        return
    if recorded.workers is None:
        yield from found_by(recorded, tuple(codes), records, plugins, ranks)
        return
    rules = rules_over_ranks(recorded, plugins).rules
    parts = parted({code: rules[code] for code in codes}, recorded.workers.n)
    answers = list(recorded.over(parts, partial(_look, plugins=plugins, ranks=tuple(ranks))))
    CATALOGUE.learn(broken for answer in answers for broken in answer.broken)
    yield from (each for answer in answers for each in answer.found)


def _look(recorded: RecordedRun, codes: _Codes, *, plugins: tuple[str, ...], ranks: tuple[int, ...]) -> _Answer:
    """Ask some rules, in a worker process."""
    found = list(found_by(recorded, codes, Records.of(recorded, ranks), plugins, ranks))
    return _Answer(found=found, broken=list(CATALOGUE.broken))


def found_by(
    recorded: RecordedRun,
    codes: _Codes,
    records: Records,
    plugins: tuple[str, ...] = (),
    ranks: Sequence[int] | None = None,
) -> _Found:
    """Yield what some rules find at all steps, with step and code; they see what any of them asks for.

    Args:
        recorded: an open recording.
        codes: of the rules.
        records: of its steps.
        plugins: files or modules with more rules.
        ranks: to look at; all when not given.
    """
    rules, n_ranks = rules_over_ranks(recorded, plugins), len(recorded.ranks)
    engines = {code: GroupEngine({code: rules.rules[code]}, n_ranks) for code in codes}
    ranks = recorded.ranks if ranks is None else ranks
    reads: frozenset[GroupReads] = frozenset(word for code in codes for word in rules.rules[code].reads)
    rows = RowsByStep(len(ranks))
    unlike = all(rules.rules[code].asked == "unlike" for code in codes)
    columns = [name for name in ranked(READINGS).names if not (unlike and name in OF_ONE_RANK)]
    for _, table in recorded.scan(partial(of_ranks, reads=reads), columns=columns, ranks=ranks) if reads else ():
        rows.put(table)
    for panel in panels_of(rows, records.only(ranks), ranks=ranks, places=among(ranks, recorded)):
        for code, each in engines.items():
            yield from ((panel.step, code, finding) for finding in each.feed(panel))
    rows.close()


def _of_few_steps(
    recorded: RecordedRun, codes: Sequence[str], plugins: tuple[str, ...], seen: Partial, records: Records
) -> _Found:
    rules = rules_over_ranks(recorded, plugins).rules
    engines = {code: GroupEngine({code: rules[code]}, len(recorded.ranks)) for code in codes}
    rows = RowsByStep(len(recorded.ranks))
    for table in seen.aside:
        rows.put(table)
    steps = {*rows.steps(), *records.steps()[:1].tolist()}
    for panel in panels_of(rows, records, ranks=recorded.ranks, places=recorded.places, steps=steps):
        for code, each in engines.items():
            yield from ((panel.step, code, finding) for finding in each.feed(panel))
    rows.close()
