"""`run --for diff` records what `diff` needs, its noise floor with it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "processes"))

import warm

from hypocenter.cli import main

PROGRAM = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8, eps=float(sys.argv[1])), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(2):
    model(torch.full((3, 4), 1.0 + step)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def recorded(folder: Path, name: str, *flags: str, eps: str = "1e-5") -> dict[str, object]:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "hypocenter", "run", "--out", name, *flags, "train.py", eps]
    done = warm.run(command, env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}, cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / name / "run.json").read_text())["config"]


def test_two_recordings_for_diff_compare_against_a_measured_floor(tmp_path: Path, capsys) -> None:
    config = recorded(tmp_path, "good", "--for", "diff")
    recorded(tmp_path, "other", "--for", "diff", eps="1e-3")

    code = main(["diff", str(tmp_path / "good"), str(tmp_path / "other")])

    assert (config["level"], config["sketch"], config["calibrate"]) == ("modules", True, "0-9")
    assert code == 1
    assert capsys.readouterr().out.startswith("diverged at step 0, forward: 1 out[0] differs by")


def test_what_is_typed_beside_it_wins(tmp_path: Path) -> None:
    config = recorded(tmp_path, "good", "--for", "diff", "--calibrate", "never")

    assert (config["level"], config["calibrate"]) == ("modules", "never")
