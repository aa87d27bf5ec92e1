"""Megatron-Core on two tensor-parallel ranks against one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from installed import skip_without
from launch import FORKS, environment

from hypocenter.compare.engine import compare_runs
from hypocenter.record.reader import open_run

skip_without("megatron.core")
pytestmark = pytest.mark.night  # Megatron is imported anew in each run

JOB = Path(__file__).with_name("megatron_job.py")
RECORDED = {"level": "modules", "sketch": True, "param_schedule": "every=1"}


def recorded(out: Path, *options: str, n: int, **config: str) -> Path:
    command = [sys.executable, str(FORKS), "--nproc-per-node", str(n), "--out", str(out)]
    command += ["--config", json.dumps(RECORDED | config), str(JOB), *options]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    return out


@pytest.mark.parametrize("options", [(), ("gated=1",)], ids=["plain", "gated"])
def test_two_ranks_are_the_same_as_one(tmp_path, options):
    one = recorded(tmp_path / "one", *options, n=1, calibrate="every=1")
    two = recorded(tmp_path / "two", *options, n=2)

    found = compare_runs(open_run(one), open_run(two))

    assert found.status == "same", (found.sentence, found.notes)


def test_another_eps_is_found_in_its_norm(tmp_path):
    one = recorded(tmp_path / "one", n=1, calibrate="every=1")
    two = recorded(tmp_path / "two", "eps=1e-3", n=2)

    found = compare_runs(open_run(one), open_run(two))

    assert found.status == "diverged"
    assert (found.first.site, found.first.port) == ("decoder.layers.1.pre_mlp_layernorm", "out[0]")
