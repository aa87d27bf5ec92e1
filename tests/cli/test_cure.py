"""`hypocenter cure`: from what was found when the step failed, or by running the program again."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import jsonschema
import pytest
import warm
from recordings import record, run

from hypocenter.diagnose.cure import Answer
from hypocenter.json_answer import published

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Square(nn.Module):
    def forward(self, x):
        return x.pow(2) / 1e5


class Singular(nn.Module):
    def forward(self, x):
        return torch.log(x - x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.middle = Singular() if "--singular" in sys.argv else Square()

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(4, 8) * (1e4 if step == 2 else 1.0)
    with torch.autocast("cpu", torch.float16):
        loss = model(x).float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item()}")
"""


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def recorded(folder: Path, *words: str, options: tuple[str, ...] = ()) -> Path:
    """The script above, trained under `hypocenter run`."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "hypocenter", "run", "--out", "r", *options, "train.py", *words]
    warm.run(command, cwd=folder, env=environment(), timeout=240).check_returncode()
    return folder / "r"


@pytest.fixture(scope="module")
def cured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("cured"))


def test_json_follows_the_published_schema(cured: Path) -> None:
    said = run("cure", cured, "--json")

    answer = json.loads(said.out)
    jsonschema.Draft202012Validator(published(Answer)).validate(answer)
    assert said.code == 0
    assert (answer["status"], answer["targets"], answer["verified"]) == ("cured", ["middle"], True)
    assert (answer["step"], answer["replays"]) == (2, 1)


def test_screen_says_what_to_change_and_how_that_is_known(cured: Path) -> None:
    said = run("cure", cured)

    lines = said.out.splitlines()
    assert lines[0] == "cured: run middle in float32"
    assert "step 2, rank 0" in lines[1]
    assert any("step 2 was replayed with it: loss and all 4 gradients finite" in line for line in lines)
    assert '    = apply: hypocenter.island(model, ["middle"])' in lines
    assert "+++ b/train.py" in said.out
    assert any(line.startswith("fp32-island  yes") for line in lines)


def test_a_bundle_is_as_good_as_its_run(cured: Path) -> None:
    (bundle,) = cured.glob("rank-*/bundles/*")

    assert run("cure", bundle, "--json").out == run("cure", cured, "--json").out


def test_what_float32_does_not_mend_is_no_cure_and_names_the_cause(tmp_path: Path) -> None:
    said = run("cure", recorded(tmp_path / "here", "--singular"))

    assert said.code == 1
    assert said.out.startswith("no cure: with all 3 modules in float32 the step is not finite either")
    assert "= cause: log-of-zero" in said.out
    assert "= instead: " in said.out


@pytest.mark.night
def test_a_recording_without_a_search_is_run_again_and_keeps_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorded(tmp_path / "here", options=("--cure", "off"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))

    unknown = run("cure", recording, "--no-rerun")
    found = run("cure", recording, "--json")
    kept = run("cure", recording, "--no-rerun", "--json")

    assert unknown.code == 5
    assert "the program was not run again" in unknown.out
    assert "running again until the step that failed: train.py" in found.err
    assert json.loads(found.out)["targets"] == ["middle"]
    assert kept.out == found.out
    assert "verified by replay" in run("check", recording).out


def test_a_program_that_is_gone_cannot_be_run_again(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "here", options=("--cure", "off"))
    moved = tmp_path / "moved"
    recording.rename(moved)
    (tmp_path / "here" / "train.py").unlink()
    (tmp_path / "here").rmdir()

    said = run("cure", moved)

    assert said.code == 2
    assert said.err.startswith("error[cannot-rerun]: the program cannot be run again here")


def test_a_step_that_jumped_is_not_run_again(cured: Path, tmp_path: Path) -> None:
    recording = tmp_path / "r"
    shutil.copytree(cured, recording)
    (path,) = recording.glob("rank-*/bundles/*/evidence.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(found | {"trigger": "spike", "cure": None}), encoding="utf-8")

    said = run("cure", recording)

    assert said.code == 5
    assert "the step jumped and stayed finite" in said.out
    assert "running again" not in said.err


def test_a_healthy_recording_is_not_run_again(tmp_path: Path) -> None:
    said = run("cure", record(tmp_path / "r", fails=False))

    assert said.code == 5
    assert said.out.startswith("cannot tell: no step of this recording failed and was examined")
    assert not said.err


def test_nothing_to_read_and_a_bundle_that_is_none(tmp_path: Path) -> None:
    broken = tmp_path / "bundle"
    broken.mkdir()
    (broken / "evidence.json").write_text("[]", encoding="utf-8")

    missing, bad = run("cure", tmp_path / "nothing"), run("cure", broken)

    assert (missing.code, bad.code) == (4, 4)
    assert "error[no-recording]" in missing.err
    assert "error[bad-bundle]" in bad.err
