"""One item of two sides: the verdict, and why."""

from __future__ import annotations

from hypocenter.checklist.checklist import Verdict
from hypocenter.checklist.configuration import Configuration, Setting, Value
from hypocenter.checklist.forms import equal, fits, is_off, is_readable, normal, spellings
from hypocenter.checklist.items.item import Item

SIDES = ("baseline", "candidate")
_KINDS = {"count": "whole number", "number": "number", "flag": "yes or no", "ids": "id"}


def judge(item: Item, baseline: Configuration, candidate: Configuration) -> tuple[Verdict, str]:
    """The verdict; why they mean the same, what the difference does, why it cannot be told."""
    one, other = baseline.settings.get(item.key), candidate.settings.get(item.key)
    if one is None or other is None:
        return _half(one, other)
    lost = [_why_lost(item, setting, side) for setting, side in zip((one, other), SIDES, strict=True)]
    if any(lost):
        return "cannot-tell", "; ".join(filter(None, lost))
    (value, reason), (across, reason_across) = _meant(item, baseline), _meant(item, candidate)
    if equal(item, value, across):
        return _alike(item, one, other, "" if reason == reason_across else reason or reason_across)
    by_rule = _equivalence(item, baseline, candidate)
    if by_rule:
        return "equivalent", by_rule
    if is_off(item, value) and is_off(item, across):
        return "equivalent", f"{in_words(one.value)} and {in_words(other.value)} both mean that it is not used"
    return "different", "; ".join(filter(None, [item.why, recommendation(item), reason, reason_across]))


def recommendation(item: Item) -> str:
    """`recommended: 1e-08`, or empty."""
    return f"recommended: {in_words(item.recommended)}" if item.recommended is not None else ""


def in_words(value: Value) -> str:
    """A value as people write it: `none`, `true`, `2, 32001`."""
    if isinstance(value, tuple):
        return ", ".join(map(in_words, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _half(one: Setting | None, other: Setting | None) -> tuple[Verdict, str]:
    said = one or other
    if said is None:
        return "not-set", "neither side says it"
    silent = "candidate" if other is None else "baseline"
    if said.unresolved is not None:
        return "cannot-tell", f"{said.unresolved}; the {silent} does not say it"
    verdict: Verdict = "only-baseline" if other is None else "only-candidate"
    return verdict, f"the {silent} does not say it, and no default of it is known"


def _why_lost(item: Item, setting: Setting, side: str) -> str:
    if setting.unresolved is not None:
        return f"{side}: {setting.unresolved}"
    if not is_readable(item, setting.value):
        return f"{side}: {in_words(setting.value)} is no {_KINDS.get(item.kind, item.kind)}"
    return ""


def _meant(item: Item, side: Configuration) -> tuple[Value, str]:
    """A side's value in the words of all, and why it is that."""
    for means in item.means:
        if fits(means.side, item, side):
            return normal(item, means.value), means.why
    return normal(item, side.settings[item.key].value), ""


def _alike(item: Item, one: Setting, other: Setting, reason: str) -> tuple[Verdict, str]:
    if reason:
        return "equivalent", reason
    if spellings(item, one.value, other.value):
        return "equivalent", f"{one.value} and {other.value} are two words for it"
    for setting, side, across in ((one, "baseline", other), (other, "candidate", one)):
        if setting.derived is not None and across.derived is None:
            return "equivalent", f"the {side} does not say it, it follows: {setting.derived}"
    return "same", ""


def _equivalence(item: Item, baseline: Configuration, candidate: Configuration) -> str:
    """Why a rule of the item says that two values mean the same; empty if none does."""
    for rule in item.equivalent:
        for first, second in ((baseline, candidate), (candidate, baseline)):
            if fits(rule.one, item, first) and fits(rule.other, item, second):
                return rule.why
    return ""
