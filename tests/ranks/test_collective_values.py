"""What goes into a collective and what comes out, on real ranks: damages below torch.distributed are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Ended, launch

JOB = Path(__file__).with_name("collectives_job.py")
DUE = {"collectives": "every=2"}


def run(tmp_path: Path, op: str, fault: str, rank: int, n: int = 2) -> Ended:
    ended = launch(JOB, op, fault, str(rank), n=n, out=tmp_path / "run", config=dict(DUE))
    assert ended.code == 0, ended.stderr
    return ended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "fault", "rank", "what"),
    [
        ("all_reduce", "drop", 1, "its own share alone"),
        ("async", "wrong", 0, "a wrong sum"),
        ("reduce_scatter", "wrong", 1, "a wrong sum"),
        ("fsdp2", "wrong", 0, "a wrong sum"),
        ("ddp", "drop", 1, "its own share alone"),
        ("all_gather", "sent", 1, "something else than rank 0 has sent"),
        ("broadcast", "sent", 1, "something else than rank 0 has sent"),
        ("all_to_all", "sent", 0, "something else than rank"),
        ("p2p", "sent", 1, "something else than rank 0 has sent"),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, op: str, fault: str, rank: int, what: str) -> None:
    ended = run(tmp_path, op, fault, rank)

    (finding,) = ended.alarms
    assert (finding["code"], finding["step"], finding["rank"]) == ("HC311", 2, rank)
    assert finding["cause"] == "collective-fault"
    assert what in finding["title"]


@pytest.mark.night
def test_the_lowest_bit_on_one_of_three_ranks_is_seen(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, "all_reduce", "bit", 2, n=3).alarms

    assert (finding["code"], finding["rank"]) == ("HC311", 2)
    assert "other bits" in finding["title"]


def test_a_result_that_lies_otherwise_in_memory_is_said_to(tmp_path: Path) -> None:
    """gloo copies memory, whatever its strides; torch 2.13 gives it what `empty_like` of a turned tensor makes."""
    first, *_ = run(tmp_path, "turned", "none", 0).alarms

    assert (first["code"], first["step"], first["op"]) == ("HC311", 0, "scatter")
    assert "the same values, in another order" in first["why"][0]
    assert "contiguous" in first["remedy"]["text"]


def test_a_sum_that_overflows_is_not_a_fault_of_the_group(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, "half", "big", 0).alarms

    assert (finding["code"], finding["step"], finding["cause"]) == ("HC312", 2, "accumulation-overflow")
    assert "rank 0 40000" in finding["why"][0]


@pytest.mark.slow
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_to_all", "p2p", "dtensor", "fsdp2", "ddp", "half"])
def test_healthy_collectives_are_not_accused(tmp_path: Path, op: str) -> None:
    ended = run(tmp_path, op, "none", 0, n=3 if op == "all_reduce" else 2)

    assert ended.diagnosis["status"] == "healthy", ended.diagnosis["findings"]
    assert ended.diagnosis["n_rows"] > 0


def test_results_are_bit_identical_with_everything_watched(tmp_path: Path) -> None:
    def sums(ended: Ended) -> list[str]:
        return sorted(line.strip() for line in ended.stdout.split("rank ") if "sum" in line)

    watched = run(tmp_path, "async", "none", 0)
    plain = launch(JOB, "async", "none", "0")

    assert sums(watched) == sums(plain)
