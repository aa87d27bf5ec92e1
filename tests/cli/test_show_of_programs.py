"""`hypocenter show` of real runs: the program's own sites, phase by phase, and no number that nobody measured."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
import warm
from recordings import run

PROGRAM = """
import sys, torch
from torch import nn

torch.manual_seed(0)
what = sys.argv[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x, is_bad):
        h = torch.relu(self.hidden(self.embed(x)))
        return self.head(h / (0 * h.sum() if is_bad else 1.0))


net = Net().to(torch.bfloat16 if what == "bfloat16" else torch.float32)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
scaler = torch.amp.GradScaler("cpu", enabled=what == "misuse", init_scale=2.0**12)
for step in range(5):
    optimizer.zero_grad()
    out = net(torch.randint(0, 10, (4, 3)), what == "nan" and step == 3)
    scaler.scale(out.float().pow(2).mean()).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # of a scaled gradient: misuse
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
"""
PHASES = ["data", "forward", "loss", "backward", "grad", "comm", "optimizer", "param", "scaler"]
MODULES = {"", "embed", "hidden", "head"}
PARAMETERS = {f"{name}.{leaf}" for name in ("embed", "hidden", "head") for leaf in ("weight", "bias")}
NUMBERS = {"loss", "grad_norm", "lr", "clip_coef", "loss_scale"}


NAN = ("nan", "--level", "sentinel")
RUNS = [
    NAN, ("nan", "--level", "modules"), ("healthy", "--level", "ops"), ("misuse", "--level", "sentinel"),
    ("bfloat16", "--level", "modules", "--param-schedule", "every=1"), ("healthy", "--sdc-check", "every=1"),
]  # fmt: skip


@pytest.fixture(scope="module", params=RUNS, ids=" ".join)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the program."""
    folder, (what, *flags) = tmp_path_factory.mktemp("programs"), request.param
    (folder / "train.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "hypocenter", "run", "--out", str(folder / "run"), *flags]
    done = warm.run([*words, str(folder / "train.py"), what], env=os.environ, timeout=120, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_sites_are_those_of_the_program_phase_by_phase(recording: Path) -> None:
    said = run("show", recording, "--rows", 0)

    _, *lines = said.out.splitlines()
    shown = [line for line in lines if not line.endswith((":", "--site '*'"))]
    sites = {"" if line.split()[1] == "(model)" else line.split()[1] for line in shown}
    known = MODULES | PARAMETERS | NUMBERS | {"batch.in[0]"}
    assert {site for site in sites if not site.startswith("loss_scale.")} <= known
    others = "\n".join(line for line in said.out.splitlines() if "batch.in[0]" not in line)  # its values are there too
    assert "digest" not in others.replace("rows of digests", "")
    assert "norm 0 " not in said.out
    replayed = lines.index("in replays of steps that failed:") if "in replays of steps that failed:" in lines else None
    for part in (lines[:replayed], [] if replayed is None else lines[replayed + 1 :]):
        phases = [PHASES.index(line.split()[0]) for line in part if line in shown]
        assert phases == sorted(phases)


def test_what_is_left_out_is_counted_and_can_be_seen(recording: Path) -> None:
    said = run("show", recording, "--rows", 0)

    everything = run("show", recording, "--rows", 0, "--site", "*").out
    assert said.out.splitlines()[-1].endswith("own measurements not shown, see them with --site '*'")
    assert any(line.split()[1].startswith("rng.") for line in everything.splitlines()[1:])
    assert "not shown" not in everything


@pytest.mark.parametrize("recording", [NAN], indirect=True, ids=["nan"])
def test_a_number_that_nobody_measured_is_not_zero(recording: Path) -> None:
    said = run("show", recording, "--values", "--step", 3, "--site", "hidden.weight")

    (line,) = [line for line in said.out.splitlines() if " grad " in line]
    assert "not recorded" in line
    assert line.endswith("NaN")  # not ×1: nobody counted
    (listed,) = [
        line for line in run("show", recording).out.splitlines() if line.startswith("grad       hidden.weight")
    ]
    assert " norm 0." in listed  # of the steps before
    assert listed.endswith("none  NaN")
    assert json.loads(run("show", recording, "--site", "hidden.weight", "--json").out)["sites"][0]["absmax"] is None


def test_the_next_commands_work(recording: Path) -> None:
    for words in ([], ["--values"], ["--site", "hidden*", "--values"]):
        said = run("show", recording, *words)

        for _ in range(3):
            (advice,) = [line for line in said.err.splitlines() if line.startswith("next: ")]
            said = run(*shlex.split(advice.removeprefix("next: hypocenter ")))
            assert said.code in (0, 1), said.err
            assert said.out
            if "check" in advice.split():
                break
