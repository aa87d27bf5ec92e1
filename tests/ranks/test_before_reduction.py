"""One rank's gradient is bad before the reduction: that rank and parameter are named, and nobody else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch import Ended, launch

JOB = Path(__file__).with_name("ddp_job.py")


def run(tmp_path: Path, *options: str, n: int = 2, config: dict[str, object] | None = None) -> Ended:
    ended = launch(JOB, *options, n=n, out=tmp_path / "run", config=config or {})
    assert ended.code == 0, ended.stderr
    return ended


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("view",), ("hand",), ("flat",), ("accumulate=3",)],
    ids=["ddp", "bucket views", "by hand", "flat", "accumulation"],
)
def test_a_nan_of_one_rank_is_named_before_it_is_everywhere(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = run(tmp_path, "fault=nan:1:6:2.weight", *options)

    (finding,) = ended.alarms
    assert (finding["rank"], finding["step"], finding["param"]) == (1, 6, "2.weight")
    is_done_again = "accumulate=3" not in options  # whether a device is to blame: HC341 takes HC313 in
    assert finding["code"] == ("HC341" if is_done_again else "HC313")
    assert ended.diagnosis["status"] == "findings"
    assert any("rank 0 -> not finite too" in line or "on rank 1, before" in line for line in finding["then"])


@pytest.mark.night
def test_a_flipped_bit_is_named_on_three_ranks(tmp_path: Path) -> None:
    ended = run(tmp_path, "fault=flip:0:7:0.weight", n=3)

    (finding,) = ended.alarms
    assert (finding["code"], finding["rank"], finding["step"], finding["param"]) == ("HC341", 0, 7, "0.weight")


def test_a_gradient_far_out_on_one_rank_is_looked_into(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, "fault=times:1:6:2.weight").alarms

    assert (finding["code"], finding["rank"], finding["param"]) == ("HC341", 1, "2.weight")


def test_without_replay_it_is_a_warning_that_blames_no_device(tmp_path: Path) -> None:
    (finding,) = run(tmp_path, "fault=times:1:6:2.weight", config={"replay": False}).alarms

    assert (finding["code"], finding["rank"], finding["param"]) == ("HC313", 1, "2.weight")
    assert finding["severity"] == "warning"
    assert finding["actual"] > 1e4


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "ten", "spike"])
def test_hard_batches_and_spikes_on_all_ranks_are_not_accused(tmp_path: Path, fault: str) -> None:
    ended = run(tmp_path, f"fault={fault}")

    assert ended.diagnosis["status"] == "healthy", ended.diagnosis["findings"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("view",), ("hand",)], ids=["ddp", "bucket views", "by hand"])
def test_training_is_bit_identical(tmp_path: Path, options: tuple[str, ...]) -> None:
    config = {"replicas": "every=2", "collectives": "every=3"}
    watched = run(tmp_path, *options, config=config)
    plain = launch(JOB, *options)

    def bits(ended: Ended) -> set[str]:
        return set(re.findall(r"bits ([0-9a-f]{64})", ended.stdout))

    assert bits(watched) == bits(plain)
    assert len(bits(plain)) == 1
