"""Who of many ranks has not said a word in the store: each looks at its neighbours in the tree, all read the list.

So a store answers a bounded number of questions for each rank; a list that each made by itself would take the square.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from hypocenter.session.tree import Level, levels_of

MOST_TOLD = 64  # missing ranks that are written down
PAUSE_S = 0.05  # between two looks at the list


def silent(store: Any, word: str, ranks: Sequence[int]) -> list[int]:
    """Return the ranks that have not written `word/RANK`."""
    return [rank for rank in ranks if not store.check([f"{word}/{rank}"])]


def look_around(store: Any, word: str, rank: int, world_size: int, node: int) -> None:
    """Note who is missing of the ranks that this one leads, and of its leaders; of a missing leader's group all."""
    for level in levels_of(rank, world_size, node):
        _note(store, word, _missing_of(store, word, level, world_size, node))


def missing(store: Any, word: str, until: float) -> list[int]:
    """Return the ranks that others have noted as missing, once there is any note.

    Args:
        until: of time.monotonic(): then it is empty if nothing is there.
    """
    while (n := store.add(f"n-missing/{word}", 0)) == 0 and time.monotonic() < until:
        time.sleep(PAUSE_S)
    found: set[int] = set()
    for number in range(min(n, MOST_TOLD)):
        with contextlib.suppress(Exception):  # counted, and not written yet
            found.add(int(store.get(f"missing/{word}/{number}")))
    return sorted(found)


def _missing_of(store: Any, word: str, level: Level, world_size: int, node: int) -> list[int]:
    leader, *others = level.members
    if level.leads:
        found = silent(store, word, others)
    else:
        found = silent(store, word, [leader])
        found += silent(store, word, others) if found else []
    for each in list(found):  # of a leader that is missing nobody else looks after its groups below
        for below in levels_of(each, world_size, node)[: level.number]:
            found += silent(store, word, below.members[1:])
    return found


def _note(store: Any, word: str, ranks: Sequence[int]) -> None:
    for rank in ranks[:MOST_TOLD]:
        if store.add(f"told/{word}/{rank}", 1) > 1:
            continue  # by another one
        number = store.add(f"n-missing/{word}", 1) - 1
        if number < MOST_TOLD:
            store.set(f"missing/{word}/{number}", str(rank))
