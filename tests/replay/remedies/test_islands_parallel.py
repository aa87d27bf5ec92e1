"""Islands under data parallelism and FSDP2, put on before and after wrapping."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))

import pytest
import torch
from launch import launch

PROGRAM = Path(__file__).with_name("parallel_islands.py")


@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 has no fully_shard on CPUs")
def test_two_ranks_compute_what_one_process_does():
    done = launch(PROGRAM)

    assert done.code == 0, done.stderr
    assert (done.stdout.count("worst"), done.stdout.count("sharded")) == (8, 2), done.stdout
