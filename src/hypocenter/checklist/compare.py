"""Two configurations, item by item: what is the same, what means the same, what differs, what only one side says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from hypocenter.checklist.checklist import Checklist, Remark, Row, Verdict
from hypocenter.checklist.configuration import Configuration, Setting, Value
from hypocenter.checklist.forms import equal, fits, is_off, is_readable, normal, spellings
from hypocenter.checklist.implied import implied
from hypocenter.checklist.items.item import Advice, Described, Item, Items
from hypocenter.checklist.items.loading import load
from hypocenter.checklist.respelled import respelled
from hypocenter.checklist.verdict import conclude, ordered

_KEY = re.compile(r"^\s*-*([^\s=:]+)")
_SIDES = ("baseline", "candidate")


def compare(
    baseline: Configuration, candidate: Configuration, items: Items | None = None, *,
    extra_rows: Iterable[Row] = (), samples: Iterable[str] = (), more_notes: Iterable[str] = (),
) -> Checklist:  # fmt: skip
    """A row for each item, the ones that matter first, and a status.

    Args:
        items: what is compared; all built-in items if not given.
        extra_rows: rows about what is in no configuration, such as the real batches; they count as the others do.
        samples: a few samples of the batches, decoded, to look at.
        more_notes: of the checks that made the extra rows.
    """
    items = load() if items is None else items
    baseline, candidate = _adopted(baseline, items), _adopted(candidate, items)
    more = tuple(extra_rows)
    measured = {row.item for row in more}
    rows = [
        _row(item, baseline, candidate)
        for item in items.by_key.values()
        if item.key not in measured and not item.measured
    ]
    rows += [*more, *_of_no_item(baseline, candidate, items)]
    status, sentence = conclude(rows)
    return Checklist(
        status=status, sentence=sentence, baseline=baseline.label, candidate=candidate.label,
        rows=ordered(rows, list(items.groups)), unknown_baseline=baseline.unknown, unknown_candidate=candidate.unknown,
        notes=(*_notes(baseline, candidate), *more_notes), samples=tuple(samples),
        kinds_baseline=baseline.kinds, kinds_candidate=candidate.kinds,
    )  # fmt: skip


def _row(item: Item, baseline: Configuration, candidate: Configuration) -> Row:
    baseline, candidate = _completed(item, baseline, candidate)
    one, other = baseline.settings.get(item.key), candidate.settings.get(item.key)
    verdict, why = _judge(item, baseline, candidate)
    is_light = verdict.startswith("only-") and _says_little(item, one or other)
    return Row(
        item=item.key, title=item.title, group=item.group, unit=item.unit, verdict=verdict, why=why,
        baseline=_value(one), candidate=_value(other), severity="note" if is_light else item.importance,
        fix=_fix(item, verdict, candidate.label, one, other), baseline_setting=one, candidate_setting=other,
        remarks=_remarks(item, baseline, candidate),
    )  # fmt: skip


def _says_little(item: Item, alone: Setting | None) -> bool:
    """Whether what one side says alone is that a thing is off, or a default that nobody wrote down."""
    return alone is not None and (alone.assumed is not None or is_off(item, normal(item, alone.value)))


def _completed(item: Item, *sides: Configuration) -> tuple[Configuration, Configuration]:
    """Both sides, a silent one with what follows from the rest of it if the other says it."""
    said = [side.settings.get(item.key) for side in sides]
    found = list(sides)
    for i, setting in enumerate(said):
        if setting is None and said[1 - i] is not None:
            derived = implied(item.key, sides[i].settings)
            if derived is not None:
                found[i] = replace(sides[i], settings={**sides[i].settings, item.key: derived})
    return found[0], found[1]


def _judge(item: Item, baseline: Configuration, candidate: Configuration) -> tuple[Verdict, str]:
    one, other = baseline.settings.get(item.key), candidate.settings.get(item.key)
    if one is None or other is None:
        return _half(item, one, other)
    lost = [_why_lost(item, setting, side) for setting, side in zip((one, other), _SIDES, strict=True)]
    if any(lost):
        return "cannot-tell", "; ".join(filter(None, lost))
    meant = _meant(item, baseline), _meant(item, candidate)
    by_rule = _equivalence(item, baseline, candidate)
    if equal(item, meant[0][0], meant[1][0]):
        if meant[0][1] != meant[1][1]:
            by_rule = meant[0][1] or meant[1][1]
        return _alike(item, one, other, by_rule)
    if by_rule:
        return "equivalent", by_rule
    if is_off(item, meant[0][0]) and is_off(item, meant[1][0]):
        return "equivalent", f"{_said(one.value)} and {_said(other.value)} both mean that it is not used"
    return "different", "; ".join(filter(None, [_of_difference(item), meant[0][1], meant[1][1]]))


def _meant(item: Item, side: Configuration) -> tuple[Value, str]:
    """A side's value in the words of all, and why it is that."""
    for means in item.means:
        if fits(means.side, item, side):
            return normal(item, means.value), means.why
    return normal(item, side.settings[item.key].value), ""


def _half(item: Item, one: Setting | None, other: Setting | None) -> tuple[Verdict, str]:
    if one is None and other is None:
        return "not-set", "neither side says it"
    silent = "candidate" if other is None else "baseline"
    said = one or other
    assert said is not None
    if said.unresolved is not None:
        return "cannot-tell", f"{said.unresolved}; the {silent} does not say it"
    verdict: Verdict = "only-baseline" if other is None else "only-candidate"
    return verdict, f"the {silent} does not say it, and no default of it is known"


def _alike(item: Item, one: Setting, other: Setting, by_rule: str) -> tuple[Verdict, str]:
    if by_rule:
        return "equivalent", by_rule
    if spellings(item, one.value, other.value):
        return "equivalent", f"{one.value} and {other.value} are two words for it"
    for setting, side, across in ((one, "baseline", other), (other, "candidate", one)):
        if setting.derived is not None and across.derived is None:
            return "equivalent", f"the {side} does not say it, it follows: {setting.derived}"
    return "same", ""


def _equivalence(item: Item, baseline: Configuration, candidate: Configuration) -> str:
    """Why a rule of the item says that the two sides mean the same; empty if none does."""
    values = [normal(item, side.settings[item.key].value) for side in (baseline, candidate)]
    for rule in item.equivalent:
        for first, second in ((baseline, candidate), (candidate, baseline)):
            if not fits(rule.one, item, first) or not fits(rule.other, item, second):
                continue
            both_ways = fits(rule.one, item, second)
            if not equal(item, values[0], values[1]) or (rule.one.spelled and not both_ways):
                return rule.why
    return ""


def _why_lost(item: Item, setting: Setting, side: str) -> str:
    if setting.unresolved is not None:
        return f"{side}: {setting.unresolved}"
    if not is_readable(item, setting.value):
        return f"{side}: {_said(setting.value)} is no {_KINDS.get(item.kind, item.kind)}"
    return ""


_KINDS = {"count": "whole number", "number": "number", "flag": "yes or no", "ids": "id"}


def _of_difference(item: Item) -> str:
    parts = [item.why]
    if item.recommended is not None:
        parts.append(_recommended(item))
    return "; ".join(parts)


def _fix(item: Item, verdict: Verdict, label: str, one: Setting | None, other: Setting | None) -> str:
    if verdict != "different" or one is None or other is None:
        return ""
    line = respelled(other, one.value)
    place = f"{other.where}: " if other.where else ""
    fix = (
        f"{place}{line}"
        if line
        else item.fix or f"{place or label + ': '}set {item.key.partition('.')[2]} to {_said(one.value)}"
    )
    if item.recommended is not None and equal(item, normal(item, other.value), normal(item, item.recommended)):
        fix += f"; or give the baseline {_said(item.recommended)}, which is recommended"
    return fix


def _remarks(item: Item, baseline: Configuration, candidate: Configuration) -> tuple[Remark, ...]:
    told: list[Remark] = []
    for advice in item.advice:
        who = [name for name, side in zip(_SIDES, (baseline, candidate), strict=True) if fits(advice.side, item, side)]
        told += [_remark(advice, " and ".join(who))] if who else []
    settings = [side.settings.get(item.key) for side in (baseline, candidate)]
    if not told and all(setting is not None and _is_unusual(item, setting) for setting in settings):
        told.append(_remark(Advice(side=Described(), importance="note", text=_recommended(item)), " and ".join(_SIDES)))
    return tuple(told)


def _is_unusual(item: Item, setting: Setting) -> bool:
    """Whether it is another value than the recommended one, and one at all."""
    value = normal(item, setting.value)
    return (
        item.recommended is not None
        and setting.unresolved is None
        and not equal(item, value, normal(item, item.recommended))
        and not is_off(item, value)
    )


def _recommended(item: Item) -> str:
    return f"recommended: {_said(item.recommended)}"


def _remark(advice: Advice, who: str) -> Remark:
    return Remark(side=who, severity=advice.importance, text=advice.text, fix=advice.fix)


def _adopted(side: Configuration, items: Items) -> Configuration:
    """The side with those of its unknown keys placed that a user's own items name."""
    wanted = {name: item.key for item in items.by_key.values() for name in item.names}
    if not wanted:
        return side
    settings: dict[str, Setting] = dict(side.settings)
    unknown: list[Setting] = []
    for setting in side.unknown:
        key = wanted_key(setting, wanted)
        if key and key not in settings:
            settings[key] = replace(setting, item=key)
        else:
            unknown.append(setting)
    return replace(side, settings=settings, unknown=tuple(unknown))


def wanted_key(setting: Setting, wanted: Mapping[str, str]) -> str:
    """The item of a key that stands in a file, by its name, whole or its last part; empty if none names it."""
    match = _KEY.match(setting.spelled)
    name = match[1] if match else ""
    return wanted.get(name) or wanted.get(name.replace("-", "_")) or wanted.get(name.rpartition(".")[2], "")


def _of_no_item(baseline: Configuration, candidate: Configuration, items: Items) -> Iterator[Row]:
    """Settings under keys that no item describes: from a reader of another package. Compared by value."""
    keys = sorted({*baseline.settings, *candidate.settings} - set(items.by_key))
    for key in keys:
        plain = Item(
            key=key, title=key, kind="text", group="other", importance="note", why="no item describes it", manual=""
        )
        yield _row(plain, baseline, candidate)


def _notes(baseline: Configuration, candidate: Configuration) -> Iterator[str]:
    for side, name in ((baseline, "baseline"), (candidate, "candidate")):
        yield from (f"{name}: {note}" for note in side.notes)


def _value(setting: Setting | None) -> Value:
    return None if setting is None else setting.value


def _said(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_said, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
