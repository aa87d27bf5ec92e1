"""A gloo group is connected with three questions of each rank to the store."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

import pytest
import torch
from torch import distributed

from hypocenter.tap.rendezvous import all_at_once

N = 6


class Counting(distributed.Store):
    """A store in memory that counts what it is asked."""

    def __init__(self, under, asked):
        super().__init__()
        self.under, self.asked = under, asked

    def __getattribute__(self, name):
        if name in ("set", "get", "wait", "multi_get", "check", "add"):
            object.__getattribute__(self, "asked")[name] += 1
            return getattr(object.__getattribute__(self, "under"), name)
        return object.__getattribute__(self, name)

    def has_extended_api(self):
        return True


@pytest.mark.parametrize("is_extended", [True, False])
def test_ranks_find_each_other(is_extended, monkeypatch):
    monkeypatch.setattr(Counting, "has_extended_api", lambda self: is_extended)
    under, asked, sums = distributed.HashStore(), Counter(), {}

    def one(rank):
        store = all_at_once(Counting(under, asked), N)
        if not is_extended:
            store = under  # as it is, a store of Python's would be asked from C++
        group = distributed.ProcessGroupGloo(store, rank, N, timeout=timedelta(seconds=30))
        tensor = torch.tensor([rank])
        group.allreduce([tensor]).wait()
        sums[rank] = int(tensor), group

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(N)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [total for total, _ in sums.values()] == [15] * N
    if is_extended:
        assert asked == {"set": N, "wait": N, "multi_get": N}


def test_a_rank_that_does_not_come_is_not_waited_for_longer():
    store = all_at_once(distributed.HashStore(), 2)
    store.set("0/0", b"here")

    with pytest.raises(RuntimeError):
        store.wait(["0/1"], timedelta(seconds=0.2))


def test_other_keys_are_asked_for_as_they_are():
    under = distributed.HashStore()
    store = all_at_once(under, 2)
    under.set("word", "yes")

    store.wait(["word"], timedelta(seconds=1))
    assert (store.get("word"), store.add("n", 2), store.check(["word"])) == (b"yes", 2, True)
