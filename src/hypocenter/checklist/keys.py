"""Which key of a side's own files says an item: found by trying, so that no key is named that its framework lacks."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from hypocenter.checklist.configuration import Configuration, Scalar, Setting, Value
from hypocenter.checklist.entry import Entry, Given
from hypocenter.checklist.reading import settled
from hypocenter.checklist.settling import settle
from hypocenter.checklist.tables import Table, read_toml, table

Fits = Callable[[Setting | None], bool]
_MODELS = {
    "hf_config": ("hf_models", "model_type")
}  # tables whose keys each model has some of, by the key that tells it
_WORD = r"(?<![\w.\"'-])[A-Za-z]\w*(?:\.\w+)*"
_NAME = re.compile(rf"--[A-Za-z][\w-]*|{_WORD}_\w+(?:\.\w+)*(?=: | = )|(?<![:=] )(?<!=){_WORD}_\w+(?:\.\w+)*(?![\w(.])")
_CODE = re.compile(r"^torch(\.|_npu$)|^context\.|^[A-Z][A-Z0-9_]+$")  # of a program, or of the environment: of no file
_COMMAND = "hypocenter "
_PROSE = 3  # words before a key that still say something without it


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """What to type, and in which file."""

    file: str  # empty if none of its lines tells
    text: str


def key_line(item: str, target: Value, side: Configuration, fits: Fits) -> KeyLine | None:
    """The key with which a side says an item, with the value that makes it say another; None: its files have none.

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
    """(how many other items change with it, the line) of every key that does it; what a key says alone comes first."""
    for at, given in reversed(list(enumerate(side.given))):
        names = table(given.table)
        for keys in (_alone(item, given, names), _together(given, names)):
            done = False
            for key in keys:
                for raw in _raws(names, key, target):
                    tried = _with(given, key, raw)
                    if tried is None or not fits(_part(tried, item)):
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
    """How many items say something else than before."""
    both = {*settings, *side.settings}
    return sum(_value(settings.get(item)) != _value(side.settings.get(item)) for item in both)


def _value(setting: Setting | None) -> Value:
    return None if setting is None else setting.value


def _part(given: Given, item: str) -> Setting | None:
    part = settle(given)
    return part.settings.get(item) or part.assumed.get(item)


def _alone(item: str, given: Given, names: Table) -> list[str]:
    """Keys that say the item by themselves; those that are there, or that the model has, first."""
    return _of_model([key for key in names.names if names.item_of(key)[0] == item], given)


def _together(given: Given, names: Table) -> list[str]:
    """Keys that say something together with others."""
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
    """What could stand there: the value in the framework's own words, or yes or no; None: the key left out."""
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
    """As the file would have it: a flag, `key: value`, `key = value`."""
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
    """`transformers, transformers Trainer`: whose files a side has."""
    return ", ".join(dict.fromkeys(table(given.table).framework for given in side.given))


def knows(side: Configuration, name: str) -> bool:
    """Whether a word that looks like a key, `--min-lr` or `model.theta`, is one of a framework of the side."""
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
    """The text without the parts, between commas and semicolons, that name keys which none of the sides has."""
    kept: list[str] = []
    for piece in re.split(r"(?<=[;,]) ", text):
        names = [] if piece.startswith(_COMMAND) else list(_NAME.finditer(piece))
        foreign = next((name for name in names if not any(knows(side, name[0]) for side in sides)), None)
        if foreign is None:
            kept.append(piece)
        elif len(piece[: foreign.start()].split()) >= _PROSE and piece[: foreign.start()].rstrip().endswith(":"):
            kept.append(piece[: foreign.start()].rstrip(": ") + ";")
    return " ".join(kept).rstrip(";, ")
