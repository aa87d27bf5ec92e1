"""What a loader reads its samples with, and which laws a look has found broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

READ_ONLY, ONE_BY_ONE, TOGETHER = "read only", "one by one", "together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The first batch of a pass: how its samples were read."""

    dataset: Any
    collate: Callable[[Any], Any]
    indices: tuple[Any, ...]
    is_batched: bool  # several items are read, then put together
    is_kept: bool  # what reading changes is there in the next pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A law that does not hold."""

    law: str
    field: str  # where in the item, or what of the data set
    other: str = ""  # the field that is parted from it
    indices: tuple[str, ...] = ()  # of the samples at which it was seen
    n_asked: int = 0
    is_proven: bool = False


def encoded(broken: list[Broken]) -> bytes:
    """Return this as what goes through a pipe."""
    return msgspec.json.encode(broken)


def decoded(answer: bytes) -> list[Broken]:
    """Return what `encoded` was given."""
    return msgspec.json.decode(answer, type=list[Broken])
