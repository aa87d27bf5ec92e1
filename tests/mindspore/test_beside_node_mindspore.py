"""The process beside a node of MindSpore ranks writes down where they are, as beside torch's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hypocenter.record.node_file import read_node
from hypocenter.session.mindspore import rank as of_rank

sys.path.insert(0, str(Path(__file__).parent))

from started import ROOT, SECONDS

PROGRAM = """
import time
import numpy as np
import mindspore as ms
from mindspore import nn, ops

ms.set_context(pynative_synchronize=True)
net = nn.Dense(3, 2)
optimizer = nn.SGD(net.trainable_params(), 0.1)
differentiated = ms.value_and_grad(lambda x: ops.reduce_sum(net(x) ** 2), None, optimizer.parameters)
for step in range(3):
    loss, gradients = differentiated(ms.Tensor(np.ones((2, 3), np.float32)))
    optimizer(gradients)
"""
MSRUN = """
import os, subprocess, sys
workers = []
for rank in range(2):
    own = {"MS_ROLE": "MS_WORKER", "RANK_ID": str(rank), "RANK_SIZE": "64", "DEVICE_ID": str(rank)}
    workers.append(subprocess.Popen(sys.argv[2:], env=os.environ | own))
for worker in workers:
    worker.wait()
"""


@pytest.mark.night
def test_ranks_that_msrun_started_are_in_the_file_of_their_node(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "msrun.py").write_text(MSRUN)
    launcher = [sys.executable, "msrun.py", "--local_worker_num=2", sys.executable, program]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HYPOCENTER", "MINDSPORE"))}
    env |= {"PYTHONPATH": str(ROOT / "src"), "GLOG_v": "3", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hypocenter", "run", "--out", "run", *launcher]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    path, end_s = tmp_path / "run" / "nodes" / "00000", time.monotonic() + SECONDS
    while ((found := read_node(path)) is None or len(found[1].ranks) < 2) and time.monotonic() < end_s:
        time.sleep(0.2)

    assert done.returncode == 0, done.stderr
    assert found is not None
    assert {rank: note.last.step for rank, note in found[1].ranks.items() if note.last} == {0: 2, 1: 2}


def test_the_scheduler_of_msrun_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("RANK", "WORLD", "OMPI_", "SLURM_", "PMI_"))]:
        monkeypatch.delenv(name)
    for name, value in {"MS_ROLE": "MS_SCHED", "RANK_ID": "0", "RANK_SIZE": "64", "DEVICE_ID": "0"}.items():
        monkeypatch.setenv(name, value)

    assert of_rank.on_node().local_rank is None
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    assert (of_rank.on_node().rank, of_rank.on_node().world_size, of_rank.on_node().local_rank) == (0, 64, 0)
