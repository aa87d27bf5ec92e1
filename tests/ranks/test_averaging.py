"""What a job of several ranks uses is the sum of what its ranks give: replicas that stay equal hide nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import launch

JOB = Path(__file__).with_name("averaging_job.py")
AT = 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "by", "rank", "parameter", "words"),
    [
        ("left-out", "hand", 1, None, "the gradients of rank 1 are in no update"),
        ("double", "hand", 2, None, "the gradients of rank 2 count 2 times"),
        ("sum", "hand", 0, "down.weight", "the gradient of down.weight is 3 times"),
        ("group", "hand", 0, "up.weight", "is not what the ranks' micro-batches give"),
        ("double", "ddp", 0, "down.weight", "the gradient of down.weight is 2 times"),
    ],
)
def test_what_breaks_the_sum_is_named(
    fault: str, by: str, rank: int, parameter: str | None, words: str, tmp_path: Path
) -> None:
    ended = launch(JOB, fault, by, n=3, out=tmp_path / "run", config={"audit": "every=1"})

    found = [f for f in ended.alarms if f["code"] == "HC308"]
    assert [(f["step"], f["rank"], f["param"]) for f in found] == [(AT, rank, parameter)], ended.stderr
    assert words in found[0]["title"]


@pytest.mark.night
def test_it_is_found_at_the_next_audited_step(tmp_path: Path) -> None:
    ended = launch(JOB, "left-out", "hand", n=3, out=tmp_path / "run", config={"audit": "doubling"})

    assert [(f["code"], f["step"], f["rank"]) for f in ended.alarms] == [("HC308", 8, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("habit", "by"),
    [
        ("none", "hand"),
        ("none", "ddp"),
        ("clip", "ddp"),
        ("by-tokens", "hand"),
        ("scaled-embedding", "hand"),
        ("shared-out", "hand"),
    ],
)
def test_a_healthy_job_is_left_alone(habit: str, by: str, tmp_path: Path) -> None:
    watched = launch(JOB, habit, by, n=3, out=tmp_path / "run", config={"audit": "every=1"})

    assert watched.alarms == []
    assert "could not be audited" not in watched.stderr
    assert watched.stdout == launch(JOB, habit, by, n=3).stdout
    assert "step 13" in watched.stdout


def test_micro_batches_that_are_reduced_with_those_before_are_told_with_their_weights(tmp_path: Path) -> None:
    (found,) = launch(JOB, "after-each", "hand", n=3, out=tmp_path / "run").alarms

    assert (found["code"], found["step"], found["cause"]) == ("HC308", 0, "program-error")
    assert found["title"] == "micro-batches of a step count 3 : 1 in the gradients"
    assert "as many as there are ranks" in found["why"][2]


def test_what_no_rank_updates_is_told_where_others_are_shared_out(tmp_path: Path) -> None:
    (found,) = launch(JOB, "shared-out-in-part", "hand", n=3, out=tmp_path / "run").alarms

    assert (found["code"], found["step"], found["site"]) == ("HC308", 0, "down.bias")
    assert found["title"] == "down.bias: in the optimizer of no rank"


@pytest.mark.slow
@pytest.mark.parametrize(("by", "codes"), [("own", ["HC337"]), ("all", [])])
def test_labels_of_ranks_weigh_the_same(by: str, codes: list[str], tmp_path: Path) -> None:
    ended = launch(JOB.with_name("labels_job.py"), by, out=tmp_path / "run")

    assert [(f["code"], f["rank"]) for f in ended.alarms] == [(code, 1) for code in codes], ended.stderr
