"""What reaches another process, or a device, is seen in a data set before anybody reads it in a child."""

from __future__ import annotations

import functools
import multiprocessing
from typing import Any

import torch
from torch import nn

from hypocenter.session.data_set.held import is_private
from tests.session.data_set import sets

LOCK = multiprocessing.get_context("spawn").Lock()


class Holds(sets.Plain):
    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.__dict__.update(held)


def with_key(items: Any, *, key: torch.Tensor) -> Any:
    return sets.padded(items), key


class UsesALock(sets.Plain):
    def __getitem__(self, i: int) -> Any:
        with LOCK:
            return super().__getitem__(i)


def test_what_is_its_own() -> None:
    assert is_private(sets.Plain(), sets.padded)
    assert is_private(sets.OwnGenerator(), functools.partial(with_key, key=torch.ones(3)))
    assert is_private(Holds(model=nn.Linear(2, 2), again=[sets.Plain()] * 3))


def test_memory_that_is_shared() -> None:
    shared = torch.zeros(3).share_memory_()

    assert not is_private(Holds(cache=shared))
    assert not is_private(Holds(cache=[{"deep": shared}]))
    assert not is_private(sets.Plain(), functools.partial(with_key, key=shared))
    assert not is_private(sets.Plain(), lambda items: shared)
    assert not is_private(Holds(n=multiprocessing.get_context("spawn").Value("i", 0)))


def test_locks_that_others_wait_for() -> None:
    assert not is_private(Holds(lock=LOCK))
    assert not is_private(UsesALock())


def test_a_device() -> None:
    assert not is_private(Holds(images=torch.zeros(3, device="meta")))
    assert not is_private(Holds(model=nn.Linear(2, 2, device="meta")))
