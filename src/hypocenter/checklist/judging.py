"""One item of two sides: the verdict, and why."""

from __future__ import annotations

import fnmatch
import math

from hypocenter.checklist.checklist import Configuration, Scalar, Setting, Value, Verdict
from hypocenter.checklist.items.item import Described, Item

SIDES = ("baseline", "candidate")
_KINDS = {"count": "whole number", "number": "number", "flag": "yes or no", "ids": "id"}
_YES, _NO = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_NOTHING = frozenset({"", "none", "null", "nil"})
_NUMBERS = frozenset({"count", "number"})


def judge(item: Item, baseline: Configuration, candidate: Configuration) -> tuple[Verdict, str]:
    """Return the verdict and why: why both mean the same, what the difference does, or why it cannot be told."""
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
    """Return `recommended: 1e-08`, or empty."""
    return f"recommended: {in_words(item.recommended)}" if item.recommended is not None else ""


def in_words(value: Value) -> str:
    """Write a value as people do: `none`, `true`, `2, 32001`."""
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
    """Return a side's value in the common words, and why it is that."""
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
    """Return why a rule of the item says that two values mean the same; empty if none does."""
    for rule in item.equivalent:
        for first, second in ((baseline, candidate), (candidate, baseline)):
            if fits(rule.one, item, first) and fits(rule.other, item, second):
                return rule.why
    return ""


def normal(item: Item, value: Value) -> Value:
    """Return the value as items of its kind are compared: 24 for "24", "bfloat16" for "BF16", True for "on"."""
    if isinstance(value, tuple):
        inner = tuple(_scalar(item, part) for part in value)
        return inner[0] if len(inner) == 1 and item.kind == "ids" else inner
    return _scalar(item, value)


def is_readable(item: Item, value: Value) -> bool:
    """Return whether the value is of the item's kind once normal: a number where a number is meant."""
    found = normal(item, value)
    if found is None or is_off(item, found):
        return True
    parts = found if isinstance(found, tuple) else (found,)
    if item.kind in _NUMBERS or item.kind == "ids":
        return all(isinstance(part, (int, float)) and not isinstance(part, bool) for part in parts)
    return item.kind != "flag" or isinstance(found, bool)


def equal(item: Item, one: Value, other: Value) -> bool:
    """Return whether two normal values are equal, numbers within the item's tolerance."""
    if isinstance(one, tuple) or isinstance(other, tuple):
        return (
            isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other)
            and all(equal(item, a, b) for a, b in zip(one, other, strict=True))
        )  # fmt: skip
    if _is_number(one) and _is_number(other):
        return _near(float(one), float(other), item.tolerance if item.kind == "number" else 0.0)  # type: ignore[arg-type]
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def is_off(item: Item, value: Value) -> bool:
    """Return whether a normal value means that the thing is not used."""
    if not item.off or isinstance(value, tuple):
        return False
    return value is None or any(_means(value, _scalar(item, nothing)) for nothing in item.off)


def spellings(item: Item, one: Value, other: Value) -> bool:
    """Return whether two values are different words for one thing, as "bf16" and "bfloat16"; not 24 and "24"."""
    if not isinstance(one, str) or not isinstance(other, str) or item.kind not in ("word", "dtype", "text"):
        return False
    return one.strip().lower() != other.strip().lower()


def fits(described: Described, item: Item, side: Configuration) -> bool:
    """Return whether a side is as described; value and spelling are those of this item."""
    setting = side.settings.get(item.key)
    if setting is None or setting.unresolved is not None:
        return False
    value = normal(item, setting.value)
    return (
        (not described.value or any(_means(value, _scalar(item, one)) for one in described.value))
        and (not described.kind or any(_like(kind, one) for kind in side.kinds for one in described.kind))
        and (not described.spelled or any(_like(setting.spelled, one) for one in described.spelled))
        and (described.above is None or (_is_number(value) and float(value) > described.above))  # type: ignore[arg-type]
        and (described.below is None or (_is_number(value) and float(value) < described.below))  # type: ignore[arg-type]
        and (described.not_below is None or _reaches(value, side.settings.get(described.not_below)))
        and all(_has(side.settings.get(key), values) for key, values in described.other.items())
        and all(_is_unset(side.settings.get(key)) for key in described.lacks)
    )


def _scalar(item: Item, value: Scalar) -> Scalar:
    if isinstance(value, str):
        return _of_text(item, value.strip())
    if item.kind == "flag" and not isinstance(value, bool) and value in (0, 1):
        return bool(value)
    if isinstance(value, float) and value.is_integer() and item.kind in ("count", "ids"):
        return int(value)
    if item.kind in ("word", "dtype", "text") and value is not None:
        whole = isinstance(value, float) and value.is_integer()
        return _of_text(item, str(int(value) if whole else value).lower())
    return value


def _of_text(item: Item, text: str) -> Scalar:
    low = text.lower()
    for alike in item.words:
        if low in alike:
            return alike[0]
    if low in _NOTHING:
        return None
    if item.kind == "flag":
        return True if low in _YES else False if low in _NO else text
    if item.kind in _NUMBERS or item.kind == "ids":
        return _number(text)
    if item.kind == "version":
        return low.partition("+")[0].removeprefix("v")
    return low if item.kind in ("word", "dtype") else text


def _number(text: str) -> Scalar:
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        return text
    return int(value) if math.isfinite(value) and value.is_integer() else value


def _near(one: float, other: float, tolerance: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=tolerance)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _means(value: Value, word: Scalar) -> bool:
    if isinstance(value, str) and isinstance(word, str):
        return _like(value, word)
    if isinstance(value, bool) or isinstance(word, bool):
        return value is word
    return value == word


def _like(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text.lower(), pattern.lower())


def _has(setting: Setting | None, values: tuple[Scalar, ...]) -> bool:
    return setting is not None and any(_means(setting.value, value) for value in values)


def _is_unset(setting: Setting | None) -> bool:
    return setting is None or (setting.unresolved is None and setting.value in (None, "none", "default"))


def _reaches(value: Value, limit: Setting | None) -> bool:
    if limit is None or not _is_number(limit.value):
        return False
    parts = value if isinstance(value, tuple) else (value,)
    return any(_is_number(part) and part >= limit.value for part in parts)  # type: ignore[operator]
