"""`hypocenter check` on a run whose program has not ended: what it has done until now, and never that it is healthy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import recordings

SRC = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.randn(3, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("waiting", flush=True)
input()
"""


@pytest.mark.night
def test_a_run_that_goes_on_is_told_with_its_last_step_and_then_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    env = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    with subprocess.Popen(
        [sys.executable, "-m", "hypocenter", "run", "--out", "r", "train.py"], cwd=tmp_path, text=True,
        env=env | {"PYTHONPATH": str(SRC)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        assert job.stdout.readline() == "waiting\n"
        live = recordings.run("check", tmp_path / "r", "--json")
        job.communicate("\n", timeout=120)
    ended = recordings.run("check", tmp_path / "r", "--json")

    said = json.loads(live.out)
    assert (live.code, said["status"]) == (5, "cannot-tell")
    assert said["why"][0].startswith("it is still running: last step 4, ")
    assert " ago, in its own code" in said["why"][0]
    assert (ended.code, json.loads(ended.out)["status"]) == (0, "healthy")
