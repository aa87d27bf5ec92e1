"""Real TRL on the CPU, models from configurations: nothing is found in healthy training, no bit of it is changed."""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from installed import skip_without

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import given
import warm
from blocks import DOCS, blocks
from blocks import given as given_to
from runner import run_page

skip_without("trl", "peft")

JOB = Path(__file__).with_name("trl_job.py")
SECONDS = 400
AUDITED = ("--audit", "every=1")
LINE = re.compile(r"^(?:step|weights) .*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job printed of its training, and what was found."""

    printed: list[str]
    diagnosis: dict

    @property
    def alarms(self):
        return [f for f in self.diagnosis["findings"] if f["severity"] != "note"]


@pytest.fixture
def train(tmp_path):
    """Run the job plain (no level) or under `hypocenter run`, all steps audited, in forks that have TRL already."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    env = kept | {"PYTHONPATH": str(JOB.parents[2] / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

    def run(*args, level=None):
        out = tmp_path / f"{level}"
        under = [] if level is None else ["-m", "hypocenter", "run", "--out", str(out), "--level", level, *AUDITED]
        done = warm.run([sys.executable, *under, str(JOB), *args], env=env, timeout=SECONDS, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        answer = json.loads((out / "diagnosis.json").read_text()) if level else {}
        return Job(printed=LINE.findall(done.stdout), diagnosis=answer)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
def test_it_is_silent_and_changes_no_bit(train, kind):
    plain = train(kind)

    seen = train(kind, level="modules")  # which `sentinel` is a part of

    assert len(plain.printed) == 5  # four steps and the weights
    assert seen.printed == plain.printed
    assert seen.alarms == []
    assert (seen.diagnosis["status"], seen.diagnosis["n_steps"]) == ("healthy", 4)


@pytest.mark.night
def test_the_line_that_divides_the_loss_of_dpo_by_zero_is_named(train):
    found = train("dpo", "--nan", level="sentinel").alarms[0]

    lines = JOB.read_text(encoding="utf-8").splitlines()
    fault = next(n for n, line in enumerate(lines, start=1) if "loss - loss" in line)
    assert (found["step"], found["cause"], found["op"]) == (2, "division-by-zero", "aten.div.Tensor")
    assert (Path(found["source"]["file"]).name, found["source"]["line"]) == (JOB.name, fault)


def test_blocks_of_its_page_run(tmp_path):
    page = DOCS / "trl.md"
    given.put(given_to(page), tmp_path)

    run_page(blocks(page), tmp_path)

    assert json.loads((tmp_path / "runs/grpo/diagnosis.json").read_text())["n_steps"] == 2
