"""Who talks with whom: pairs in rounds, overlapping groups, and calls between sockets."""

import pytest

from hypocenter.examine import links
from hypocenter.examine.collectives import overlapping
from hypocenter.examine.links import rounds


@pytest.mark.parametrize("n_ranks", [2, 3, 4, 5, 8, 13, 64])
def test_each_two_ranks_meet_once_and_in_the_same_order_for_both(n_ranks):
    partners = {rank: list(rounds(rank, n_ranks)) for rank in range(n_ranks)}

    for rank, theirs in partners.items():
        assert sorted(theirs) == [r for r in range(n_ranks) if r != rank]
    assert finish(partners)


@pytest.mark.parametrize("n_ranks", [65, 100, 128])
def test_large_jobs_are_joined_by_few_pairs_for_each_rank(n_ranks):
    partners = {rank: list(rounds(rank, n_ranks)) for rank in range(n_ranks)}

    assert max(map(len, partners.values())) <= 7
    assert all(rank in partners[other] for rank, theirs in partners.items() for other in theirs)
    assert finish(partners)


def finish(partners):
    """Whether everybody comes to the end when a pair only goes on if it is the next one for both."""
    left = {rank: list(theirs) for rank, theirs in partners.items()}
    while any(left.values()):
        ready = [r for r, theirs in left.items() if theirs and left[theirs[0]] and left[theirs[0]][0] == r]
        if not ready:
            return False
        for rank in ready:
            left[rank].pop(0)
    return True


@pytest.mark.parametrize("n_ranks", [3, 4, 7, 64, 200])
def test_each_rank_is_in_groups_that_no_other_rank_shares_all_of(n_ranks):
    groups = overlapping(n_ranks)

    of = {rank: {n for n, group in enumerate(groups) if rank in group} for rank in range(n_ranks)}
    assert len(groups) <= 64
    assert all(len(mine) == 2 for mine in of.values())
    if n_ranks <= 64:
        assert len(set(map(frozenset, of.values()))) == n_ranks


def test_two_ranks_make_no_smaller_groups():
    assert overlapping(2) == []


@pytest.mark.parametrize("n_ranks", [2, 5, 64, 65, 500])
def test_calls_join_everybody(n_ranks):
    reached, frontier = {0}, [0]
    while frontier:
        new = {p for rank in frontier for p in links.peers(rank, n_ranks)} - reached
        reached |= new
        frontier = list(new)

    assert len(reached) == n_ranks
    assert all(rank not in links.peers(rank, n_ranks) for rank in range(n_ranks))


def test_a_link_is_tried_in_both_directions_and_a_closed_one_says_why():
    listeners = {rank: links.Listener(rank, "127.0.0.1") for rank in (0, 1)}
    facts = {rank: {"address": "127.0.0.1", "port": each.port} for rank, each in listeners.items()}
    facts[2] = {"address": "127.0.0.1", "port": 1}  # tcpmux: nobody listens there

    found = links.call(0, facts, deadline=float("inf"))

    assert found["1"]["ms"] > 0
    assert "refused" in found["2"]["error"]


def test_another_rank_at_an_address_is_noticed():
    listener = links.Listener(7, "127.0.0.1")

    found = links.call(0, {0: {}, 1: {"address": "127.0.0.1", "port": listener.port}}, deadline=float("inf"))

    assert "somebody else" in found["1"]["error"]
