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


def test_nobody_waits_where_a_replay_needs_no_other_rank():
    ranks = said("lazy")

    assert all(told["is_open"] and told["meetings"] == 0 and not told["warnings"] for told in ranks.values())


def test_ranks_can_talk():
    ranks = said("talk")

    assert ranks[0]["talk"] == [[0, 10], [1, 0], "torch.bfloat16", [2, 2], [[1.0, 1.0], [1.0, 1.0]]]
    assert ranks[1]["talk"] == [[0, 10], [1, 0], "torch.bfloat16", [2, 1], [[0.0], [0.0]]]


@pytest.mark.parametrize(("case", "code"), [("kill", 137), ("stop", 137)])
def test_a_lost_rank_costs_the_others_one_timeout(case, code):
    ranks = said(case, n=3, code=code)

    assert sorted(ranks) == [0, 2]
    for told in ranks.values():
        assert not told["is_open"]
        assert told["longest_s"] < TIMEOUT_S + 0.5
        (line,) = told["warnings"]
        assert "no word from rank 1" in line
        assert ("a rank is gone" in line) == (case == "kill")


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


@pytest.mark.parametrize("case", ["fork", "reinit", "restarted"])
def test_it_survives(case):
    ranks = said(case)

    assert all(told["is_open"] and not told["warnings"] for told in ranks.values())
