"""What to type where an item differs, and what is worth saying though both sides agree."""

from __future__ import annotations

from hypocenter.checklist.checklist import Remark
from hypocenter.checklist.configuration import Configuration, Setting
from hypocenter.checklist.forms import equal, fits, is_off, normal
from hypocenter.checklist.items.item import Item
from hypocenter.checklist.judging import SIDES, in_words, recommendation
from hypocenter.checklist.keys import frameworks, key_line, without_foreign
from hypocenter.checklist.respelled import respelled

_MEASURED = ("facts.json", "rank.json")  # of a recording: what the program was, nothing to edit


def fix(item: Item, baseline: Setting, candidate: Setting, side: Configuration) -> str:
    """What to change so that the candidate says what the baseline says: its line anew, or a key that it lacks.

    A key is named only if the candidate's framework has it; else words say what to do.

    Args:
        candidate: its setting of the item.
        side: the candidate.
    """
    general = without_foreign(item.fix, (side,)) if side.given else item.fix
    text = _line(item, baseline, candidate, side) or general or _words(item, baseline, candidate, side)
    if _is_recommended(item, candidate):
        text += f"; or give the baseline {in_words(item.recommended)}, which is recommended"
    return text


def _line(item: Item, baseline: Setting, candidate: Setting, side: Configuration) -> str:
    """What to type, and where; empty if no key of the candidate's says the item."""
    if candidate.where.partition(":")[0] in _MEASURED:
        return ""
    own = next((item.fixes[given.table] for given in side.given if given.table in item.fixes), "")
    if own:
        return own.format(value=in_words(baseline.value))
    line = respelled(candidate, baseline.value)
    if line:
        return f"{candidate.where}: {line}" if candidate.where else line
    target = normal(item, baseline.value)
    found = key_line(
        item.key, baseline.value, side,
        lambda setting: setting is not None and setting.unresolved is None
        and equal(item, normal(item, setting.value), target),
    )  # fmt: skip
    return "" if found is None else f"{found.file or side.label}: {found.text}"


def _words(item: Item, baseline: Setting, candidate: Setting, side: Configuration) -> str:
    who = "" if candidate.where.partition(":")[0] in _MEASURED else frameworks(side)
    lacks = f"no single key of {who} sets it: " if who else ""
    return f"{lacks}in the candidate's program, make it {in_words(baseline.value)} ({item.title})"


def remarks(item: Item, baseline: Configuration, candidate: Configuration) -> tuple[Remark, ...]:
    """The item's advice for the sides that it concerns; a recommendation that neither follows, if nothing else."""
    told: list[Remark] = []
    for advice in item.advice:
        who = [name for name, side in zip(SIDES, (baseline, candidate), strict=True) if fits(advice.side, item, side)]
        if who:
            sides = tuple(
                side for name, side in zip(SIDES, (baseline, candidate), strict=True) if name in who and side.given
            )
            how = without_foreign(advice.fix, sides) if sides else advice.fix
            told.append(Remark(side=" and ".join(who), severity=advice.importance, text=advice.text, fix=how))
    settings = [side.settings.get(item.key) for side in (baseline, candidate)]
    if not told and all(setting is not None and _is_unusual(item, setting) for setting in settings):
        told.append(Remark(side=" and ".join(SIDES), severity="note", text=recommendation(item)))
    return tuple(told)


def _is_recommended(item: Item, setting: Setting) -> bool:
    return item.recommended is not None and equal(item, normal(item, setting.value), normal(item, item.recommended))


def _is_unusual(item: Item, setting: Setting) -> bool:
    """Whether it is another value than the recommended one, and one at all."""
    return (
        item.recommended is not None
        and setting.unresolved is None
        and not _is_recommended(item, setting)
        and not is_off(item, normal(item, setting.value))
    )
