"""Thousands of ranks meet over a tree: the right answer everywhere, few hops, few questions to the store."""

from __future__ import annotations

import datetime
import math
from collections import Counter

import pytest
import torch

from bench.agreement.simulate import HOP_S, PASSES, Job, Store, assemble, meet
from hypocenter.session import assembly
from hypocenter.session.assembly import who_is_silent
from hypocenter.session.tree import Tree, TreeWork, levels_of

SIZES = [(2, 2), (65, 8), (100, 1), (2048, 8), (10_000, 8), (10_000, 16)]


@pytest.mark.parametrize(("n", "node"), SIZES)
def test_every_rank_is_connected_with_the_root_by_small_groups(n, node):
    n_groups, members = Counter(), {}
    for rank in range(n):
        levels = levels_of(rank, n, node)
        n_groups[len(levels)] += 1
        assert [level.leads for level in levels[:-1]] == [True] * (len(levels) - 1)
        assert levels[-1].leads == (rank == 0)
        for level in levels:
            assert level.members[level.index] == rank
            assert members.setdefault(level.name, level.members) == level.members  # all say the same of a group
    assert max(map(len, members.values())) <= 32
    assert sum(map(len, members.values())) <= 1.6 * n
    assert max(n_groups) <= 1 + math.ceil(math.log(n, 32)) + 1


@pytest.mark.parametrize("n", [65, 2048, 10_000])
def test_a_meeting_takes_a_few_hops_and_all_hear_the_same(n):
    """A ring, as gloo's own all-reduce is, takes 19,998 at 10,000 ranks."""
    job = Job(n)
    values = [[int(rank == n - 2), rank, -rank] for rank in range(n)]

    heard, seconds = meet(job, values)

    assert all(each == [1, n - 1, 0] for each in heard)
    assert round(seconds / HOP_S) <= 18
    assert job.n_messages <= 2.5 * n


def test_a_number_of_each_rank_is_gathered():
    job, n = Job(70), 70
    outs = [[torch.zeros(1, dtype=torch.int64) for _ in range(n)] for _ in range(n)]
    options = type("Options", (), {"timeout": datetime.timedelta(seconds=5)})
    works = [job.tree(rank).allgather([outs[rank]], [torch.tensor([7 * rank])], options) for rank in range(n)]
    for _ in range(PASSES):
        works = [work for work in works if not work.is_completed()]

    assert not works
    assert all([int(t) for t in each] == [7 * rank for rank in range(n)] for each in outs)


def test_what_the_store_is_asked_grows_as_the_ranks_do():
    asked = {}
    for n in (96, 384):
        job = Job(n)
        found = assemble(job)
        assert all(each.outcome is not None and each.outcome.waits for each in found), found[0].why_not
        assert {each.outcome.start_step for each in found} == {0}
        asked[n] = (sum(job.asked.values()) - job.asked["check"]) / n  # looks whether all have spoken depend on time
        assert max(job.of_rank.values()) < 80

    assert asked[384] < 1.1 * asked[96] < 40


@pytest.mark.parametrize("dead", [[5], [8], [0], [16, 17, 90], [0, 1, 2]])
def test_who_is_missing_is_known_to_all_for_few_questions(dead, monkeypatch):
    """Rank 5 is one of a node, 8 the leader of one, 0 the root."""
    monkeypatch.setattr(assembly, "PAUSE_S", 0.0)
    job = Job(96, dead=dead)
    living = [rank for rank in range(96) if rank not in dead]
    for rank in living:
        Store(job, rank).set(f"waits/{rank}", "1")
    job.asked.clear()
    for rank in living:  # at the same time, in a job
        assembly.look_around(Store(job, rank), "waits", rank, 96, 8)

    found = [who_is_silent(Store(job, rank), "waits", rank, 96, until=0.0) for rank in living]

    assert all(each == dead for each in found)
    assert sum(job.asked.values()) < 20 * 96 < 96 * 96


class Step:
    """A work that ends when it is told to, well or not."""

    def __init__(self, error=None):
        self.is_over, self.error = False, error

    def is_completed(self):
        return self.is_over

    def wait(self, timeout):
        if not self.is_over:
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise self.error
        return True


def test_a_wait_that_is_too_short_breaks_nothing_and_a_failure_parts_with_all():
    first, second, told = Step(), Step(RuntimeError("Connection closed by peer")), []
    work = TreeWork(iter_of(first, second), lambda: told.append(1))
    short = datetime.timedelta(seconds=0.01)

    with pytest.raises(RuntimeError, match="timed out"):
        work.wait(short)
    assert not work.is_completed()
    first.is_over = True
    assert not work.is_completed()
    assert not told

    second.is_over = True
    assert work.is_completed()
    assert told == [1]
    with pytest.raises(RuntimeError, match="closed by peer"):
        work.wait(short)


def iter_of(*steps):
    yield from steps


def test_neighbours_in_a_ring_connect_at_the_same_time():
    """One after the other each would wait for the next, and all for ever."""
    import threading

    n, barriers = 5, {}
    for rank in range(n):
        barriers[frozenset((rank, (rank + 1) % n))] = threading.Barrier(2)

    def pair(rank):
        return lambda other: barriers[frozenset((rank, other))].wait(timeout=200)

    failed = []

    def one(rank):
        try:
            Tree([], [], pair(rank), rank).connect([(rank + 1) % n, (rank - 1) % n])
        except RuntimeError as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failed
