"""Files of one side in, its configuration out: `read` tells the kind of each by its content and merges them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypocenter.checklist.catalogue import AT_MOST_BYTES, READERS, Reader, Source
from hypocenter.checklist.configuration import Configuration, Setting
from hypocenter.checklist.derive import derive
from hypocenter.checklist.entry import ConfigurationError, Given
from hypocenter.checklist.settling import settle
from hypocenter.checklist.sheet import Part
from hypocenter.recognising import recognised, unknown


def read(paths: Sequence[Path]) -> Configuration:
    """The configuration that these files say together, of which a later one has the last word.

    What a file says stands above what follows from it, and that above the defaults of the frameworks.

    Raises:
        ConfigurationError: a file that is missing, damaged, or no configuration that we know.
    """
    if not paths:
        raise ConfigurationError("no file is given", why="a side of the checklist is one file or more", fix="name one")
    found = [_given(Path(path)) for path in paths]
    given = tuple(each for of_file in found for each in of_file)
    parts = [settle(each) for each in given]
    _, replaced, notes = _said(parts)
    return Configuration(
        label=", ".join(str(path) for path in paths),
        kinds=tuple(dict.fromkeys(each.kind for of_file in found for each in reversed(of_file))),
        settings=_of_parts(parts),
        given=given,
        unknown=tuple(setting for part in parts for setting in part.unknown),
        set_aside=(*(setting for part in parts for setting in part.set_aside), *replaced),
        notes=tuple(dict.fromkeys(notes)),
    )


def settled(given: Sequence[Given]) -> dict[str, Setting]:
    """The settings that all of this comes to, by item."""
    return _of_parts([settle(each) for each in given])


def _of_parts(parts: Sequence[Part]) -> dict[str, Setting]:
    settings, _, _ = _said(parts)
    derive(settings, of_defaults=False)
    for item, setting in _assumed(parts, settings).items():
        settings.setdefault(item, setting)
    derive(settings, of_defaults=True)
    return dict(sorted(settings.items()))


def kinds() -> dict[str, str]:
    """Every kind of configuration that can be read, and what it is in one line."""
    return {name: entry.about for name, entry in READERS.entries().items()}


def _given(path: Path) -> list[Given]:
    try:
        source = _source(path)
        return _flat(_chosen(source).read(source))
    except OSError as error:
        raise ConfigurationError(
            "the configuration cannot be opened", where=str(path), why=error.strerror or str(error),
            fix="give a file that is there",
        ) from error  # fmt: skip
    except (MemoryError, RecursionError) as error:
        raise ConfigurationError(
            "the configuration is damaged", where=str(path), why=type(error).__name__, fix="give another file"
        ) from error


def _flat(given: Given) -> list[Given]:
    """What a file says beside its own comes first, as its own has the last word."""
    return [*(inner for each in given.alongside for inner in _flat(each)), given]


def _source(path: Path) -> Source:
    if path.is_dir():
        return Source(path=path, is_directory=True, start=b"", is_whole=True)
    with path.open("rb") as file:
        start = file.read(AT_MOST_BYTES)
        return Source(path=path, is_directory=False, start=start, is_whole=not file.read(1))


def _chosen(source: Source) -> Reader:
    if not source.is_directory and not source.start.strip():
        raise ConfigurationError("the file is empty", where=str(source.path), fix="give the one that the program reads")
    found = recognised(READERS, source)
    if found is None:
        fix = "give a launch script, a log with its arguments, or the configuration file of the program"
        raise unknown(ConfigurationError, "kind of configuration", READERS, where=source.path, fix=fix)
    return found


def _said(parts: Sequence[Part]) -> tuple[dict[str, Setting], list[Setting], list[str]]:
    """What is said, the last word winning; what it takes the place of; a note where two files do not agree."""
    said: dict[str, Setting] = {}
    replaced: list[Setting] = []
    notes = [note for part in parts for note in part.notes]
    for part in parts:
        for item, setting in part.settings.items():
            earlier = said.get(item)
            if earlier is not None and earlier.derived is None and setting.derived is not None:
                replaced.append(setting)
                continue  # what is written stands above what is computed
            if earlier is not None and earlier.value != setting.value and earlier.derived is None:
                notes.append(
                    f"{setting.where}: {setting.spelled} takes the place of {earlier.spelled} ({earlier.where})"
                )
            replaced += [earlier] if earlier is not None else []
            said[item] = setting
    return said, replaced, notes


def _assumed(parts: Sequence[Part], said: dict[str, Setting]) -> dict[str, Setting]:
    """Defaults of the frameworks; of experts only where there are some."""
    found: dict[str, Setting] = {}
    for part in sorted(parts, key=lambda part: part.order):
        for item, setting in part.assumed.items():
            found.setdefault(item, setting)
    experts = said.get("moe.num_experts") or found.get("moe.num_experts")
    has_experts = experts is not None and (experts.value is None or experts.value not in (0, 1))
    return {
        item: value
        for item, value in found.items()
        if has_experts or not item.startswith("moe.") or item == "moe.num_experts"
    }
