"""What `watch` gives back: a verdict at the end, a diagnosis at any time, a picture in a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hypocenter

SRC = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import sys
import torch
import hypocenter
hypocenter.watch(out="run")
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
print(*sorted({"click", "rich", "jinja2", "duckdb", "safetensors"} & set(sys.modules)))
"""


def train(bad_step: int = -1) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        output = model(torch.ones(2, 3))
        (torch.log(output * 0) if step == bad_step else output).sum().backward()
        optimizer.step()


def test_the_end_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with hypocenter.watch(out="bad"):
        train(bad_step=2)
    bad = capsys.readouterr().err
    with hypocenter.watch(out="good") as handle:
        train()
    handle.close()

    assert bad.startswith("hypocenter: error[HC102]: the logarithm of exactly 0 (test_handle.py:")
    assert bad.endswith(", step 2); more: hypocenter check bad\n")
    assert capsys.readouterr().err == "hypocenter: healthy in 4 steps; more: hypocenter check good\n"


def test_a_program_that_only_calls_watch_is_told_at_its_end_and_has_loaded_nothing_for_it(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, env=env, check=True
    )

    assert done.stdout == "\n"
    assert done.stderr.splitlines()[-1] == "hypocenter: healthy in 3 steps; more: hypocenter check run"


def test_nothing_recorded_is_not_called_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hypocenter.watch(out=tmp_path / "run"):
        pass

    assert capsys.readouterr().err == ""


def test_a_diagnosis_can_be_asked_for_while_training_goes_on(tmp_path: Path) -> None:
    with hypocenter.watch(out=tmp_path / "run") as handle:
        train(bad_step=2)
        during = handle.diagnosis()
    after = handle.diagnosis()

    assert during.findings[0].title == after.findings[0].title == "the logarithm of exactly 0"


def test_a_notebook_shows_the_findings_and_no_markup_of_others(tmp_path: Path) -> None:
    with hypocenter.watch(out=tmp_path / "<b>run") as handle:
        empty = handle._repr_html_()
        train(bad_step=2)
    shown = handle._repr_html_()

    assert "<b>" not in empty + shown
    assert empty.startswith("<pre style=")
    assert "the logarithm of exactly 0" in shown
    assert "cause: " in shown
    assert repr(handle) == f"<hypocenter recording to {handle.directory}>"
