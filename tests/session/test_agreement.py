"""The council of ranks: it tells, it never holds anybody up for longer than its timeout, and it closes for good."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))

JOB = Path(__file__).with_name("agreement_job.py")
TIMEOUT_S = 3.0


def said(case, n=2, code=0):
    """By rank, what those ranks told that came to the end."""
    from launch import launch

    ended = launch(JOB, case, n=n, timeout=120)
    assert ended.code == code, ended.stderr
    return {
        told["rank"]: told for line in ended.stdout.splitlines() if line.startswith("{") and (told := json.loads(line))
    }


def test_all_ranks_know_of_a_failure_before_the_update():
    ranks = said("wait", n=3)

    assert all(told["is_open"] and told["meetings"] > 60 and not told["warnings"] for told in ranks.values())
    assert len({told["meetings"] for told in ranks.values()}) == 1


@pytest.mark.parametrize(("case", "n"), [("lazy", 2), ("tree-lazy", 3)])
def test_nobody_waits_where_a_replay_needs_no_other_rank(case, n):
    ranks = said(case, n=n)

    assert all(told["is_open"] and told["meetings"] == 0 and not told["warnings"] for told in ranks.values())


def test_ranks_can_talk():
    ranks = said("talk")

    assert ranks[0]["talk"] == [[0, 10], [1, 0], "torch.bfloat16", [2, 2], [[1.0, 1.0], [1.0, 1.0]]]
    assert ranks[1]["talk"] == [[0, 10], [1, 0], "torch.bfloat16", [2, 1], [[0.0], [0.0]]]


def test_many_ranks_meet_and_talk_over_a_tree():
    """Five ranks connected as thousands are: nodes of two, their leaders in pairs."""
    ranks = said("tree-wait", n=5)

    assert all(told["is_open"] and told["meetings"] > 60 and not told["warnings"] for told in ranks.values())
    assert len({told["meetings"] for told in ranks.values()}) == 1

    talked = said("tree-talk", n=5)
    for rank, told in talked.items():
        assert told["talk"][:4] == [[0, 10, 20, 30, 40], [4, 0], "torch.bfloat16", [2, (rank - 1) % 5 + 1]]
        assert not told["warnings"]


@pytest.mark.parametrize(
    ("case", "n", "code"), [("kill", 3, 137), ("stop", 3, 137), ("tree-kill", 5, 137), ("tree-stop", 5, 137)]
)
def test_a_lost_rank_costs_the_others_one_timeout(case, n, code):
    ranks = said(case, n=n, code=code)

    assert sorted(ranks) == [rank for rank in range(n) if rank != 1]
    for told in ranks.values():
        assert not told["is_open"]
        assert told["longest_s"] < TIMEOUT_S + 0.5
        (line,) = told["warnings"]
        assert "no word from rank 1" in line
        assert ("a rank is gone" in line) == case.endswith("kill")


def test_ranks_with_different_numbers_of_updates_go_on():
    ranks = said("uneven")

    who = [told for told in ranks.values() if "the ranks are at different steps" in told["warnings"][0]]
    assert who
    assert all(told["rows"] == [1.0] for told in who)
    assert all(len(told["warnings"]) == 1 and told["longest_s"] < TIMEOUT_S + 0.5 for told in ranks.values())


def test_there_is_no_council_when_a_rank_takes_no_part():
    ranks = said("absent")

    assert not ranks[0]["is_open"]
    assert ranks[0]["longest_s"] < 0.5
    assert all("did not say within" in line and "rank 1" in line for line in ranks[0]["warnings"])


@pytest.mark.parametrize(("case", "n"), [("fork", 2), ("reinit", 2), ("restarted", 2), ("tree-reinit", 3)])
def test_it_survives(case, n):
    ranks = said(case, n=n)

    assert all(told["is_open"] and not told["warnings"] for told in ranks.values())
