"""The options of a rule: their defaults, what a person calls them, and the words that optimizers have for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T", bound="Options")


def option(default: Any, called: str = "", *, words: Iterable[str] = (), must_be_told: bool = False) -> Any:
    """Declare an option of a rule.

    Args:
        default: torch's.
        called: what a person calls it; without such a name nobody looks for another value of it.
        words: what optimizers call it, beside the name of the field; `betas[0]` is the first of a pair.
        must_be_told: frameworks have other defaults, so an optimizer that does not tell it cannot be done again.
    """
    return field(default=default, metadata={"called": called, "words": tuple(words), "must_be_told": must_be_told})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that all rules have. A rule with more derives a dataclass of its own.

    Attributes:
        family: the name of the rule.
        decoupled: weight decay shrinks the weight itself (as in AdamW) and is not added to the gradient (L2).
        maximize: the gradient is climbed.
    """

    family: str = option("", "kind of optimizer")
    lr: float = option(1e-3, "learning rate", must_be_told=True)
    weight_decay: float = option(0.0, "weight decay")
    decoupled: bool = option(
        False, "decoupled weight decay (AdamW)", words=("decoupled_weight_decay", "adam_w_mode", "adamw_mode")
    )
    maximize: bool = option(False, "maximize")


def number(value: Any) -> float | None:
    """Return the value as a float; None if it is no finite number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def read(kind: type[T], told: Mapping[str, Any], numbers: Callable[[Any], Any] = number, **implied: Any) -> T | None:
    """Read the options that an optimizer tells of itself; None where one is missing that must be told.

    Args:
        told: by its own words: an entry of `param_groups`.
        numbers: makes a number of a value, None of what is none.
        implied: what it does where it does not tell.
    """
    found: dict[str, Any] = {}
    for each in fields(kind):
        is_switch = isinstance(each.default, bool)
        values = [_told(told, word) for word in (*each.metadata["words"], each.name)]
        values = (
            [bool(v) if isinstance(v, (bool, int)) else None for v in values] if is_switch else map(numbers, values)
        )
        value = next((value for value in values if value is not None), implied.get(each.name))
        if value is not None:
            found[each.name] = value
        elif each.metadata["must_be_told"]:
            return None
    return kind(**found)


def called(options: Options | type[Options]) -> dict[str, str]:
    """Return what a person calls each option; those that have no such name are left out."""
    return {each.name: each.metadata["called"] for each in fields(options) if each.metadata["called"]}


def _told(told: Mapping[str, Any], word: str) -> Any:
    name, bracket, index = word.partition("[")
    if not bracket:
        return told.get(word)
    pair, at = told.get(name), int(index[:-1])
    return pair[at] if isinstance(pair, (list, tuple)) and len(pair) > at else None
