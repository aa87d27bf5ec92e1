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

from typing import Literal

import msgspec

from hypocenter.checklist.checklist import Importance
from hypocenter.checklist.configuration import Scalar

Kind = Literal["count", "number", "flag", "word", "dtype", "text", "ids", "version", "list"]
GROUPS = ("structure", "moe", "optimizer", "weights", "precision", "parallel", "data", "other")


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
