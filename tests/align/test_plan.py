from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from hypocenter.align.plan import plan_of, read_plan
from hypocenter.errors import ConfigError

TWO = {"baseline": {"command": "python a.py"}, "candidate": {"command": "python b.py"}}


def test_reads_sides_stages_and_widenings(tmp_path: Path) -> None:
    path = tmp_path / "port.toml"
    path.write_text(
        '[baseline]\ncommand = "OMP_NUM_THREADS=2 python train.py --out \'a b\'"\nconfig = "gpu.sh"\ncwd = "gpu"\n'
        '[candidate]\nrecordings = "npu/"\nlogs = { long = "npu.log", repeat-1 = "again.log" }\n'
        '[stages]\nlr = 1e-5\nskip = [5]\n[[widening]]\nname = "2 cards"\nbaseline = "torchrun train.py"\n'
    )

    plan = read_plan(path)

    assert plan.baseline.argv == ("python", "train.py", "--out", "a b")
    assert plan.baseline.variables == {"OMP_NUM_THREADS": "2"}
    assert plan.baseline.config == ("gpu.sh",)
    assert plan.start_folder("baseline") == tmp_path / "gpu"
    assert plan.candidate.logs == {"long": "npu.log", "repeat-1": "again.log"}
    assert (plan.stages.lr, plan.stages.skip) == (1e-5, (5,))
    assert plan.state == tmp_path / "port.align"
    wide = plan.widened(plan.widening[0])
    assert (wide.baseline.command, wide.candidate.command) == ("torchrun train.py", "")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"candidat": {}}, "did you mean 'candidate'?"),
        ({"stages": {"frozen_step": 3}}, "did you mean 'frozen_steps'?"),
        ({"baseline": {"comand": "x"}}, "did you mean 'command'?"),
        ({"baseline": {}}, "nothing is said of the baseline"),
        ({"baseline": {"command": "a 'b"}}, "cannot be split"),
        ({"stages": {"steps": "three"}}, "steps cannot be 'three'"),
        ({"stages": {"steps": 1}}, "2 or more"),
        ({"widening": [{"baseline": "x"}]}, "needs a name"),
        ({"widening": {"name": "x"}}, "two pairs of brackets"),
    ],
)
def test_says_what_is_wrong_and_the_nearest_right_name(changed: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(TWO | changed, Path("plan.toml"))

    assert word in str(error.value)


def test_the_template_is_a_plan_as_it_stands_and_with_all_its_lines(tmp_path: Path) -> None:
    text = resources.files("hypocenter.align").joinpath("template.toml").read_text()
    whole = "\n".join(
        line[2:] if line.startswith("# ") and ("=" in line or line.startswith("# [")) else line
        for line in text.splitlines()[3:]
    )
    (tmp_path / "plan.toml").write_text(text)
    (tmp_path / "whole.toml").write_text(whole)

    assert read_plan(tmp_path / "plan.toml").candidate.command == "python train_new.py"
    full = read_plan(tmp_path / "whole.toml")
    assert full.widening
    assert full.stages.weights == "impose"
    assert full.baseline.logs
    assert full.stages.skip == (5,)


def test_a_plan_that_is_not_there_names_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hypocenter align new"):
        read_plan(tmp_path / "none.toml")
