"""Real ranks in every layout that torch has: who had the NaN first is named, a healthy run is left alone."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from hypocenter.detect.local_rows import LOCAL
from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("parallel_job.py")
LAYOUTS = ["fsdp2", "ddp", "fsdp1", "fsdp1-flat", "tp", "mesh", "gpipe", "fsdp1-bf16", "fsdp2-bf16", "sp", "1f1b"]
AXES = {
    "ddp": "dp",
    "fsdp1": "dp",
    "fsdp1-flat": "dp",
    "fsdp1-bf16": "dp",
    "fsdp2": "dp",
    "fsdp2-bf16": "dp",
    "tp": "tp",
    "sp": "tp",
    "gpipe": "pp",
    "1f1b": "pp",
}


def job(layout, fault, *args, folder, recorded=True, timeout_s=120.0):
    from launch import launch

    folder.mkdir()
    ended = launch(
        JOB, layout, fault, "--weights", str(folder), *args, n=4 if layout == "mesh" else 2,
        out=folder / "run" if recorded else None, config={"agree_timeout_s": timeout_s}, timeout=240,
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    return ended


@functools.cache
def weights_of_plain(layout, fault, *args):
    """By rank, of a run without Hypocenter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "plain"
        job(layout, fault, *args, folder=folder, recorded=False)
        return weights(folder)


def weights(folder):
    return [torch.load(path) for path in sorted(folder.glob("rank*.pt"))]


def are_bit_identical(ours, plain):
    return len(ours) == len(plain) > 1 and all(
        len(a) == len(b) and all(x.equal(y) for x, y in zip(a, b, strict=True))
        for a, b in zip(ours, plain, strict=True)
    )


def blamed(ended):
    """The one alarm. That replicas have gone apart since is true where one rank's optimizer made other gradients."""
    first, *others = ended.alarms
    assert all(f["code"] == "HC301" and f["step"] > first["step"] for f in others), others
    return first


def coords_of(layout, rank):
    if layout == "mesh":
        return {"dp": rank // 2, "tp": rank % 2}
    return {AXES[layout]: rank}


def is_at(found, layout, rank):
    told = {axis: n for axis, n in found["coords"].items() if n is not None}
    return found["rank"] == rank and told == coords_of(layout, rank)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_healthy_run_is_silent_and_unchanged(layout, tmp_path):
    ended = job(layout, "none", folder=tmp_path / "job")

    assert (ended.diagnosis["status"], ended.alarms) == ("healthy", [])
    assert are_bit_identical(weights(tmp_path / "job"), weights_of_plain(layout, "none"))


# Where ranks do the same, one of them stands for both; stages of a pipeline do not.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "rank"),
    [("ddp", 0), ("fsdp1", 1), ("fsdp1-flat", 0), ("fsdp1-bf16", 1), ("fsdp2", 0), ("fsdp2-bf16", 1), ("tp", 0),
     ("sp", 1), ("mesh", 1), ("gpipe", 0), ("gpipe", 1), ("1f1b", 0), ("1f1b", 1)],
)  # fmt: skip
def test_a_gradient_that_one_rank_spoils_is_named(layout, rank, tmp_path):
    ended = job(layout, "gradient", "--rank", str(rank), "--survive", folder=tmp_path / "job")

    block = 1 if (layout, rank) in (("gpipe", 0), ("1f1b", 0)) else 2
    found = blamed(ended)
    place = (3, f"blocks.{block}", f"blocks.{block}.scale")
    assert (found["step"], found["site"], found["param"]) == place, (found, ended.stderr)
    assert (found["phase"], found["op"], found["source"]["text"]) == (
        "backward",
        "aten.copy_.default",
        'grad.view(-1)[0] = float("nan")  # <- fault: gradient',
    )
    assert is_at(found, layout, rank)
    own = {row.site for row in open_run(tmp_path / "job" / "run").readings() if (row.port, row.step) == (LOCAL, 3)}
    assert own <= {f"blocks.{block}.scale"}
    assert own or not layout.startswith(("ddp", "fsdp"))
    plain = weights_of_plain(layout, "gradient", "--rank", str(rank), "--survive")
    assert are_bit_identical(weights(tmp_path / "job"), plain)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tp", "ddp", "fsdp1", "fsdp1-flat", "fsdp2", "mesh", "gpipe"])
def test_an_activation_that_one_rank_spoils_is_named(layout, tmp_path):
    rank = {"mesh": 2, "gpipe": 0}.get(layout, 1)

    ended = job(layout, "activation", "--rank", str(rank), "--survive", folder=tmp_path / "job")

    block = 1 if layout == "gpipe" else 2
    found = blamed(ended)
    assert (found["step"], found["site"], found["op"]) == (3, f"blocks.{block}", "aten.log.default")
    assert (found["phase"], found["cause"]) == ("forward", "log-of-zero")
    assert "fault: activation" in found["source"]["text"]
    assert is_at(found, layout, rank)
    plain = weights_of_plain(layout, "activation", "--rank", str(rank), "--survive")
    assert are_bit_identical(weights(tmp_path / "job"), plain)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["fsdp2", "fsdp1", "tp"])
def test_a_replay_that_breaks_off_on_one_rank_harms_nobody(layout, tmp_path):
    fault = ("activation", "--rank", "0", "--survive")

    ended = job(layout, *fault, "--refuse-again", folder=tmp_path / "job")

    assert "the replay raised RuntimeError: this step has been computed already" in ended.stderr
    assert "another rank did not come to" in ended.stderr
    assert are_bit_identical(weights(tmp_path / "job"), weights_of_plain(layout, *fault))


@pytest.mark.night
@pytest.mark.parametrize("layout", ["tp"])
def test_under_torchrun(layout, tmp_path):
    """The slow way for one layout: ranks that import torch themselves, started by `hypocenter run`."""
    from launch import environment

    command = ["hypocenter", "run", "--out", str(tmp_path / "run"), "torchrun", "--standalone", "--nproc-per-node", "2"]

    done = subprocess.run(
        [sys.executable, "-m", *command, str(JOB), layout, "gradient", "--survive"],
        cwd=tmp_path, env=os.environ | environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    alarms = [
        f for f in json.loads((tmp_path / "run" / "diagnosis.json").read_text())["findings"] if f["severity"] != "note"
    ]
    (found,) = alarms
    assert (found["step"], found["param"]) == (3, "blocks.2.scale")
    assert is_at(found, layout, 1)
