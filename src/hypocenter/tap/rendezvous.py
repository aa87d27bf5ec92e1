"""How the ranks of a gloo group find each other with few questions to the store of the job.

Gloo waits for each other rank's address and asks for it: 2 n questions of each of n ranks. Here they are asked for at
once, so a group costs each rank three, whatever its size.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

_Store: Any = torch.distributed.Store if torch.distributed.is_available() else object


class AllAtOnce(_Store):
    """A store that fetches what the ranks of a group have written under their numbers together.

    Args:
        store: of the group alone, under a prefix of its own.
        size: ranks of the group.
    """

    def __init__(self, store: Any, size: int) -> None:
        super().__init__()
        self._store, self._size = store, size
        self._names: list[str] = []  # under which the ranks write
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Write a value; from its key it is known under which keys the other ranks write theirs."""
        head, _, number = key.rpartition("/")
        if number.isdigit():
            self._names = [f"{head}/{rank}" if head else str(rank) for rank in range(self._size)]
        self._store.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(minutes=5)) -> None:
        """Wait until all keys are there; for keys of ranks fetch what all of them have written."""
        if self._known.keys() >= set(keys):
            return
        if set(self._names) >= set(keys):
            self._store.wait(self._names, timeout)
            self._known = dict(zip(self._names, self._store.multi_get(self._names), strict=True))
        else:
            self._store.wait(keys, timeout)

    def get(self, key: str) -> bytes:
        """Return the value of a key, already fetched if it is a rank's."""
        return self._known[key] if key in self._known else self._store.get(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a number in the store, and return the sum."""
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""
        return self._store.check(keys)


def all_at_once(store: Any, size: int) -> Any:
    """Wrap the store so that it is asked fewer questions, where it can answer several at once."""
    return AllAtOnce(store, size) if store.has_extended_api() else store
