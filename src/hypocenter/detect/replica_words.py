"""Axes, odd ranks and times in sentences about replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypocenter.axes import WORDS
from hypocenter.detect.rank_words import ranks_text


def axis_words(axis: str) -> str:
    """`dp` -> data-parallel."""
    return WORDS.get(axis, axis)


def who(ranks: Sequence[int], odd: Sequence[int]) -> str:
    """Which rank is the odd one, or that nobody can tell."""
    if odd:
        return f"{ranks_text(odd)} {'differs' if len(odd) == 1 else 'differ'} from the others of {ranks_text(ranks)}"
    if len(ranks) == 2:
        return f"{ranks_text(ranks)} differ; with two ranks nothing here tells which of them is wrong"
    return f"{ranks_text(ranks)} differ, and no value is that of most of them"


def when_words(since: int | None, step: int) -> str:
    """`at step 10`, or `between steps 10 and 20` when nobody looked in between."""
    if since is None or since >= step - 1:
        return f"at step {step}"
    return f"between steps {since} and {step}"


def values_words(values: Mapping[int, float], digits: int = 4, at_most: int = 4) -> str:
    """`0.5 on rank 0, 1 on rank 1`."""
    shown = [f"{value:.{digits}g} on rank {rank}" for rank, value in list(values.items())[:at_most]]
    more = f" (and {len(values) - at_most} more ranks)" if len(values) > at_most else ""
    return ", ".join(shown) + more
