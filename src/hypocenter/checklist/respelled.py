"""What to type so that a setting says another value: `rms_norm_eps: 1e-6` becomes `rms_norm_eps: 1e-05`."""

from __future__ import annotations

import re

from hypocenter.checklist.configuration import Setting, Value
from hypocenter.checklist.words import canonical

_WORD = re.compile(r"[^\s=:,\"']+")


def respelled(setting: Setting, target: Value) -> str:
    """The setting as it stands in its file with its one value replaced; empty if it is not plain which word that is."""
    if isinstance(target, (tuple, bool)) or target is None or not setting.spelled or setting.derived is not None:
        return ""
    places = [match for match in _WORD.finditer(setting.spelled) if _says(setting, match[0])]
    if len(places) != 1 or places[0].start() == 0:
        return ""
    (place,) = places
    return f"{setting.spelled[: place.start()]}{_written(target)}{setting.spelled[place.end() :]}"


def _says(setting: Setting, word: str) -> bool:
    if isinstance(setting.value, str) and word.lower() != setting.value.lower():
        return False  # a framework's own name of it (`ConstantWarmUpLR`): of the other value we have none
    found = canonical(setting.item, word)
    return found == setting.value and not isinstance(setting.value, bool)


def _written(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
