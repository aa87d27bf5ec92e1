"""The roll: who is here is known without a group, also when rank 0 is not."""

import threading
import time

import pytest
import torch.distributed as dist

from hypocenter.examine.meeting import Meeting, NoStore, call_roll
from hypocenter.examine.request import Request

NOW = 0.0  # a deadline that is over: whoever calls the roll does not wait


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def meeting_of(store, rank, n_ranks=3):
    request = Request(
        speak_fd=-1, timeout_s=10, rank=rank, n_ranks=n_ranks, store_host="127.0.0.1", store_port=store.port, key="k"
    )
    return Meeting(request, 60.0), request  # to connect, on a machine that does much else


def roll(store, rank, deadline, last, **named):
    meeting, request = meeting_of(store, rank, **named)
    return call_roll(meeting, request, {"host": f"h{rank}"}, deadline, last)


def test_all_are_here(store):
    rosters = {}
    soon = time.monotonic() + 200
    threads = [threading.Thread(target=lambda r=r: rosters.update({r: roll(store, r, soon, soon)})) for r in (2, 1, 0)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert rosters[0] == rosters[1] == rosters[2]
    assert rosters[0]["ranks"] == [0, 1, 2]
    assert rosters[0]["facts"]["1"] == {"host": "h1"}


def test_a_rank_that_never_comes_is_missing_on_the_roster(store):
    meeting, _ = meeting_of(store, 2)
    meeting.put("here/2", {"host": "h2"})
    meeting.count("arrived")

    assert roll(store, 0, NOW, NOW)["ranks"] == [0, 2]


def test_the_first_that_came_calls_the_roll_when_rank_0_is_missing(store):
    assert roll(store, 2, NOW, NOW)["ranks"] == [2]
    assert roll(store, 1, NOW, NOW)["ranks"] == [2]  # came when it had been called


def test_nobody_else_calls_it(store):
    meeting, _ = meeting_of(store, 0)
    meeting.count("arrived")  # rank 0 has come, and is about to call

    assert roll(store, 1, NOW, NOW) is None


def test_the_first_to_decide_decides_for_all(store):
    one, _ = meeting_of(store, 0)
    other, _ = meeting_of(store, 1)

    assert one.claim("go/x", 0) == 0
    assert other.claim("go/x", 1) == 0


def test_a_vote_needs_everybody(store):
    one, _ = meeting_of(store, 0)
    other, _ = meeting_of(store, 1)

    assert one.vote("wrong", 2, 2, NOW) is None
    assert other.vote("wrong", 1, 2, NOW) == 3


def test_a_store_that_is_not_there_is_said_so():
    request = Request(speak_fd=-1, timeout_s=1, rank=1, n_ranks=2, store_host="127.0.0.1", store_port=1)

    with pytest.raises(NoStore):
        Meeting(request, 1.0)
