"""What to type where an item differs, and what is worth saying though both sides agree."""

from __future__ import annotations

from hypocenter.checklist.checklist import Remark
from hypocenter.checklist.configuration import Configuration, Setting
from hypocenter.checklist.forms import equal, fits, is_off, normal
from hypocenter.checklist.items.item import Item
from hypocenter.checklist.judging import SIDES, in_words, recommendation
from hypocenter.checklist.respelled import respelled

_MEASURED = ("facts.json", "rank.json")  # of a recording: what the program was, nothing to edit


def fix(item: Item, baseline: Setting, candidate: Setting, label: str) -> str:
    """What to change so that the candidate says what the baseline says: its line anew, if that is plain.

    Args:
        label: of the candidate, for a value that stands nowhere in it.
    """
    is_measured = candidate.where.partition(":")[0] in _MEASURED
    place = "in the candidate's program: " if is_measured else f"{candidate.where or label}: "
    line = "" if is_measured else respelled(candidate, baseline.value)
    if line:
        text = f"{place}{line}" if candidate.where else line
    else:
        text = item.fix or f"{place}set {item.key.partition('.')[2]} to {in_words(baseline.value)}"
    if _is_recommended(item, candidate):
        text += f"; or give the baseline {in_words(item.recommended)}, which is recommended"
    return text


def remarks(item: Item, baseline: Configuration, candidate: Configuration) -> tuple[Remark, ...]:
    """The item's advice for the sides that it concerns; a recommendation that neither follows, if nothing else."""
    told: list[Remark] = []
    for advice in item.advice:
        who = [name for name, side in zip(SIDES, (baseline, candidate), strict=True) if fits(advice.side, item, side)]
        if who:
            told.append(Remark(side=" and ".join(who), severity=advice.importance, text=advice.text, fix=advice.fix))
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
