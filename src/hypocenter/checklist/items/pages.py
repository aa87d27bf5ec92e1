"""The manual page of an item, from its TOML file and from the tables of frameworks' keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import fill

from hypocenter.checklist import tables
from hypocenter.checklist.configuration import Scalar
from hypocenter.checklist.items.item import Advice, Described, Item, Items
from hypocenter.manual import Manual

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


def page(item: Item) -> Manual:
    """What it means, how it is decided, what to do, when it is wrong."""
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
    """The pages of all items, by key."""
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
    """How each framework calls the item: the keys of its names table."""
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
