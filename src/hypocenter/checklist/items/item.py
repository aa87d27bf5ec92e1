"""One item of the checklist as its TOML file says it: what it is, how two values of it compare, why it matters.

group, title, order       of the file: the group, its heading, where it stands
[words]                   kind -> lists of words that mean one thing
[[item]]
key title kind unit       canonical key, a heading, count|number|flag|word|dtype|text|ids|version|list
importance                if the two sides differ: error, warning, note
rows                      rows of the seeds' tables that it answers: "optimizer/eps"
why                       one sentence: what a difference does to the numbers
manual fix wrong          paragraphs of its manual page: what it is, what to do, when a difference is no error
fixes                     table of names -> what to type there, with {value}, where one key alone does not do it
recommended               the value that the seeds recommend
tolerance                 relative, of a number; 1e-6 if not given
off                       values that mean "not used" beside null
names                     keys of files that no built-in table knows and that mean this item, for one's own items
measured                  whether it is a fact of the real batches, in no configuration
[[item.equivalent]]       one, other: two descriptions of a side; why they are the same
no_equivalent             why there is no second way to say the same value
[[item.advice]]           what is worth saying though both sides agree; `side` describes whom it concerns
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from textwrap import fill
from typing import Literal

import msgspec

from hypocenter.checklist import tables
from hypocenter.checklist.checklist import Importance, Scalar
from hypocenter.errors import ConfigError
from hypocenter.manual import Manual
from hypocenter.toml import tomllib

Kind = Literal["count", "number", "flag", "word", "dtype", "text", "ids", "version", "list"]
GROUPS = ("structure", "moe", "optimizer", "weights", "precision", "parallel", "data", "other")
ENTRY_POINTS = "hypocenter.items"
WIDTH = 96  # columns of a line, which is shown with two before it on a screen of 100
_KINDS = {
    "count": "Whole numbers, compared exactly.",
    "flag": "Yes or no.",
    "word": "Words, compared without regard to case, after frameworks' own words are translated.",
    "dtype": "Number formats, whatever they are called: bf16, torch.bfloat16 and mstype.bfloat16 are one.",
    "text": "Texts, compared character by character.",
    "ids": "Ids of tokens, one or several, compared exactly.",
    "version": "Versions, compared as they are written; what stands behind a + is left out.",
    "list": "Lists, compared element by element.",
}
_WEIGHTS = {
    "error": "A difference is an error: the two cannot give the same numbers.",
    "warning": "A difference is a warning: the two may give the same numbers, but look.",
    "note": "A difference is a note and does not make the configurations different.",
}


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conditions on one side, all of which hold; an empty one always does. Words may have `*`."""

    value: tuple[Scalar, ...] = ()  # one of them
    kind: tuple[str, ...] = ()  # of the configuration: "megatron*"
    spelled: tuple[str, ...] = ()  # as it stands in the file: "*adam"
    above: float | None = None
    below: float | None = None
    not_below: str | None = None  # key of an item that this one must be below: an id below the vocabulary's size
    other: dict[str, tuple[Scalar, ...]] = {}  # of other items of that side
    lacks: tuple[str, ...] = ()  # other items that the side does not set


class Equivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Two ways to say the same, whichever side says which."""

    one: Described
    other: Described
    why: str


class Means(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a side's value is in the words of all others: Megatron-LM's "adam" is AdamW, MindFormers' is not."""

    side: Described
    value: Scalar
    why: str


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that is worth saying of a side even if the other has the same."""

    side: Described
    text: str
    fix: str = ""
    importance: Importance = "warning"


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An item; see above for the fields."""

    key: str
    title: str
    kind: Kind
    importance: Importance
    why: str
    manual: str
    group: str = ""
    unit: str = ""
    rows: tuple[str, ...] = ()
    fix: str = ""
    fixes: dict[str, str] = {}
    wrong: str = ""
    recommended: Scalar = None
    tolerance: float = 1e-6
    off: tuple[Scalar, ...] = ()
    names: tuple[str, ...] = ()
    measured: bool = False
    means: tuple[Means, ...] = ()
    equivalent: tuple[Equivalent, ...] = ()
    no_equivalent: str = ""
    advice: tuple[Advice, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file: the items of one group."""

    group: str
    title: str = ""
    order: int = 99
    words: dict[str, tuple[tuple[str, ...], ...]] = {}
    item: tuple[Item, ...] = ()


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """All items by key, in the order of the groups, and the groups' headings."""

    by_key: dict[str, Item]
    groups: dict[str, str]


def load(paths: Sequence[Path] = ()) -> Items:
    """Load the built-in items, those of other packages, then those of `paths` (TOML files or their folders).

    A later item of the same key takes the place of the earlier one.

    Raises:
        ConfigError: a file that cannot be read or says something that is no item; names file and place.
    """
    return _gathered([*_built_in(), *_of_packages(), *(read(file) for path in paths for file in _files(path))])


def read(file: Path) -> Group:
    """Read one file of items. Raises ConfigError."""
    try:
        return parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the items cannot be read", where=str(file), why=str(error), fix="give a TOML file of items"
        ) from error


def parse(text: str, where: str) -> Group:
    """Read the items of a text. Raises ConfigError, which names `where`."""
    try:
        return msgspec.convert(tomllib.loads(text), type=Group)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(
            "the items are not as they should be", where=where, why=str(error),
            fix="see docs/checklist.md for what an item has",
        ) from error  # fmt: skip


@cache
def _built_in() -> tuple[Group, ...]:
    files = resources.files("hypocenter.checklist.items").iterdir()
    texts = [(file.name, file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".toml")]
    return tuple(parse(text, name) for name, text in sorted(texts))


def _of_packages() -> Iterator[Group]:
    for point in metadata.entry_points(group=ENTRY_POINTS):
        found = point.load()  # a path, or a function that gives one
        path = Path(str(found() if callable(found) else found))
        yield from (read(file) for file in _files(path))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.toml"))
    if not found:
        raise ConfigError("a folder without items", where=str(path), fix="put TOML files of items into it")
    return found


def _gathered(groups: Iterable[Group]) -> Items:
    ordered = sorted(groups, key=lambda group: group.order)
    headings: dict[str, str] = {}
    words: dict[str, tuple[tuple[str, ...], ...]] = {}
    for group in ordered:
        if group.title or group.group not in headings:
            headings.setdefault(group.group, group.title or group.group)
        for kind, lists in group.words.items():
            words[kind] = (*words.get(kind, ()), *lists)
    by_key: dict[str, Item] = {}
    for group in ordered:
        for item in group.item:
            alike = (*item.words, *words.get(item.kind, ()))
            by_key[item.key] = msgspec.structs.replace(item, group=item.group or group.group, words=alike)
    place = {name: i for i, name in enumerate(headings)}
    return Items(by_key=dict(sorted(by_key.items(), key=lambda pair: place[pair[1].group])), groups=headings)


def page(item: Item) -> Manual:
    """Return the item's page: what it means, how it is decided, what to do, when it is wrong."""
    return Manual(
        message=item.title,
        sections=(
            ("What it means", _lines([item.manual, f"What a difference does: {item.why}."])),
            ("How it is decided", _lines(_decided(item))),
            ("What to do", _lines([item.fix or "Give the candidate the baseline's value."])),
            ("When it is wrong", _lines([item.wrong or "When the two sides are meant to differ in it."])),
        ),
    )


def _lines(sentences: Iterable[str]) -> str:
    return "\n".join(fill(" ".join(text.split()), WIDTH, break_on_hyphens=False) for text in dict.fromkeys(sentences))


def pages(items: Items) -> dict[str, Manual]:
    """Return the pages of all items, by key."""
    return {key: page(item) for key, item in items.by_key.items()}


def _decided(item: Item) -> Iterator[str]:
    if item.measured:
        yield "Looked at in the real batches of the runs, not in a configuration."
    else:
        unit = f" In {item.unit}." if item.unit else ""
        yield _KINDS.get(item.kind, f"Numbers, the same within {item.tolerance:g} of each other.") + unit
    yield _WEIGHTS[item.importance]
    yield from (f"Means the same: {rule.why}." for rule in (*item.means, *item.equivalent))
    if item.off:
        yield f"Means that it is not used: {_values(item.off)}, or null."
    if item.no_equivalent:
        yield f"Nothing else means the same: {item.no_equivalent}."
    if item.recommended is not None:
        yield f"Recommended: {_values((item.recommended,))}."
    yield from (f"Told even where both sides agree ({_whom(advice)}): {advice.text}." for advice in item.advice)
    keys = [f"{framework} {', '.join(names)}" for framework, names in keys_of(item.key)]
    if keys:
        yield f"Said as: {'; '.join(keys)}."


def keys_of(item: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each framework with its keys for the item, by its names table."""
    for name in tables.names():
        table = tables.table(name)
        keys = [f"`{key}`" for key, told in table.names.items() if told.lstrip("!") == item]
        if keys:
            yield table.framework, keys


def _whom(advice: Advice) -> str:
    return ", ".join(_conditions(advice.side)) or "always"


def _conditions(side: Described) -> Iterator[str]:
    if side.kind:
        yield " or ".join(kind.rstrip("*") for kind in side.kind)
    if side.value:
        yield f"the value is {_values(side.value)}"
    if side.above is not None:
        yield f"above {side.above:g}"
    if side.below is not None:
        yield f"below {side.below:g}"
    if side.not_below is not None:
        yield f"not below {side.not_below}"
    for key, values in side.other.items():
        yield f"{key} is {_values(values)}"
    yield from (f"without {key}" for key in side.lacks)


def _values(values: tuple[Scalar, ...]) -> str:
    told = [("true" if value else "false") if isinstance(value, bool) else str(value) or '""' for value in values]
    return " or ".join(dict.fromkeys("none" if value == "None" else value for value in told))
