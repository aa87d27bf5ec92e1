"""What to type where an item differs, and what is worth saying though both sides agree."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from hypocenter.checklist.checklist import Configuration, Entry, Given, Remark, Scalar, Setting, Value
from hypocenter.checklist.file_entries import settle
from hypocenter.checklist.items.item import Item
from hypocenter.checklist.judging import SIDES, equal, fits, in_words, is_off, normal, recommendation
from hypocenter.checklist.reading import settled
from hypocenter.checklist.tables import Table, read_toml, table
from hypocenter.checklist.words import canonical

_MEASURED = ("facts.json", "rank.json")  # of a recording: what the program was, nothing to edit
_WORD = re.compile(r"[^\s=:,\"']+")
Fits = Callable[[Setting | None], bool]
_MODELS = {
    "hf_config": ("hf_models", "model_type")
}  # tables whose keys each model has some of, by the key that tells it
_DOTTED = r"(?<![\w.\"'-])[A-Za-z]\w*(?:\.\w+)*"
_NAME = re.compile(
    rf"--[A-Za-z][\w-]*|{_DOTTED}_\w+(?:\.\w+)*(?=: | = )|(?<![:=] )(?<!=){_DOTTED}_\w+(?:\.\w+)*(?![\w(.])"
)
_CODE = re.compile(r"^torch(\.|_npu$)|^context\.|^[A-Z][A-Z0-9_]+$")  # of a program, or of the environment: of no file
_COMMAND = "hypocenter "
_PROSE = 3  # words before a key that still say something without it


def fix(item: Item, baseline: Setting, candidate: Setting, side: Configuration) -> str:
    """Say what to change so that the candidate says what the baseline says: its line anew, or a key it lacks.

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
    """Return what to type, and where; empty if no key of the candidate's says the item."""
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
    """Return the item's advice for the sides it concerns; else a recommendation if neither side follows it."""
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
    """Return whether the value is known, in use, and not the recommended one."""
    return (
        item.recommended is not None
        and setting.unresolved is None
        and not _is_recommended(item, setting)
        and not is_off(item, normal(item, setting.value))
    )


def respelled(setting: Setting, target: Value) -> str:
    """Return the setting's text with its value replaced; empty if it is not plain which word the value is."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """A line to type, and the file in which."""

    file: str  # empty if none of its lines tells
    text: str


def key_line(item: str, target: Value, side: Configuration, fits: Fits) -> KeyLine | None:
    """Return the key and value that make a side say an item as another does; None: its files have no such key.

    Each key that could be is put there, and what the side then says is looked at.

    Args:
        item: key of the item.
        target: what it is to be, in the item's words.
        fits: whether a setting has that value.
    """
    if isinstance(target, tuple) or target is None:
        return None
    found = ((n_changed, line) for n_changed, line in _tried(item, target, side, fits))
    best = min(found, key=lambda pair: pair[0], default=None)
    return best[1] if best is not None else None


def _tried(item: str, target: Scalar, side: Configuration, fits: Fits) -> Iterator[tuple[int, KeyLine]]:
    """Yield (how many other items change, the line) of every key that does it; first keys that say it alone."""
    for at, given in reversed(list(enumerate(side.given))):
        names = table(given.table)
        for keys in (_alone(item, given, names), _together(given, names)):
            done = False
            for key in keys:
                for raw in _raws(names, key, target):
                    tried = _with(given, key, raw)
                    if tried is None or not fits(_setting_in(tried, item)):
                        continue
                    settings = settled((*side.given[:at], tried, *side.given[at + 1 :]))
                    if fits(settings.get(item)):
                        yield (
                            _n_changed(settings, side),
                            KeyLine(file=_file(given), text=_spelled(given, names, key, raw)),
                        )
                        done = True
                        break
            if done:
                return


def _n_changed(settings: Mapping[str, Setting], side: Configuration) -> int:
    """Count the items that say something else than before."""
    both = {*settings, *side.settings}
    return sum(value_of(settings.get(item)) != value_of(side.settings.get(item)) for item in both)


def value_of(setting: Setting | None) -> Value:
    """Return the value of a setting; None when it is not set."""
    return None if setting is None else setting.value


def _setting_in(given: Given, item: str) -> Setting | None:
    part = settle(given)
    return part.settings.get(item) or part.assumed.get(item)


def _alone(item: str, given: Given, names: Table) -> list[str]:
    """Return keys that say the item by themselves; first those that are there, or that the model has."""
    return _of_model([key for key in names.names if names.item_of(key)[0] == item], given)


def _together(given: Given, names: Table) -> list[str]:
    """Return keys that say something together with others."""
    return _of_model([key for key in names.joined.keys if "*" not in key], given)


def _of_model(keys: list[str], given: Given) -> list[str]:
    present = {entry.key for entry in given.entries}
    if given.table not in _MODELS:
        return sorted(keys, key=lambda key: key not in present)
    models, told_by = _MODELS[given.table]
    kind = next((str(entry.value) for entry in given.entries if entry.key == told_by), "")
    known = {*present, *read_toml(models).get(kind, {}).get("defaults", {})}
    return [key for key in keys if key in known]


def _raws(names: Table, key: str, target: Scalar) -> Iterator[Scalar]:
    """Yield what could stand there: the value in the framework's words, or yes or no; None: the key left out."""
    yield from (word for word, value in names.words.get(key, {}).items() if value == target)
    if isinstance(target, str) and key not in names.names:  # `bf16: true`, before `torch_dtype: bfloat16`
        yield from (True, False)
    yield from (target, not target) if isinstance(target, bool) else (target,)
    if not isinstance(target, str):
        yield from () if isinstance(target, bool) else (True, False)
    yield None


def _with(given: Given, key: str, raw: Scalar) -> Given | None:
    kept = tuple(entry for entry in given.entries if entry.key != key)
    if raw is None:
        return replace(given, entries=kept) if len(kept) < len(given.entries) else None
    return replace(given, entries=(*kept, Entry(key=key, value=raw, spelled=key)))


def _file(given: Given) -> str:
    return next((entry.where.partition(":")[0] for entry in given.entries if entry.where), "")


def _spelled(given: Given, names: Table, key: str, raw: Scalar) -> str:
    """Write the key as the file would have it: a flag, `key: value`, `key = value`."""
    word = str(raw).lower() if isinstance(raw, bool) else f"{raw}"
    if any(entry.spelled.startswith("--") for entry in given.entries):
        flag = next((name for name, meant in names.flags.items() if meant == (key, raw)), key)
        typed = "--" + (
            flag
            if any("_" in entry.spelled.split()[0] for entry in given.entries if entry.spelled)
            else flag.replace("_", "-")
        )
        if raw is None or (raw is False and flag == key and names.switches.has(key)):
            return f"leave out {typed}"
        return typed if flag != key or (raw is True and names.switches.has(key)) else f"{typed} {word}"
    if raw is None:
        return f"leave out {key}"
    if given.table == "environment":
        return f"export {key}={word}"
    joint = " = " if any(" = " in entry.spelled for entry in given.entries) else ": "
    return f"{key}{joint}{word}"


def frameworks(side: Configuration) -> str:
    """Name the frameworks whose files a side has: `transformers, transformers Trainer`."""
    return ", ".join(dict.fromkeys(table(given.table).framework for given in side.given))


def knows(side: Configuration, name: str) -> bool:
    """Return whether a word that looks like a key (`--min-lr`, `model.theta`) is known to a framework of the side."""
    key = name.removeprefix("--").replace("-", "_")
    if _CODE.match(name):
        return True
    for given in side.given:
        names = table(given.table)
        every = (*names.names, *names.joined.keys, *names.set_aside.keys, *names.flags, *names.switches.keys)
        if any(fnmatch.fnmatchcase(key, each) for known in every for each in (known, known.rpartition(".")[2])
               if each.strip("*.")):  # fmt: skip
            return True
    return False


def without_foreign(text: str, sides: tuple[Configuration, ...]) -> str:
    """Remove the parts, between commas and semicolons, that name keys which none of the sides has."""
    kept: list[str] = []
    for piece in re.split(r"(?<=[;,]) ", text):
        names = [] if piece.startswith(_COMMAND) else list(_NAME.finditer(piece))
        foreign = next((name for name in names if not any(knows(side, name[0]) for side in sides)), None)
        if foreign is None:
            kept.append(piece)
        elif len(piece[: foreign.start()].split()) >= _PROSE and piece[: foreign.start()].rstrip().endswith(":"):
            kept.append(piece[: foreign.start()].rstrip(": ") + ";")
    return " ".join(kept).rstrip(";, ")
