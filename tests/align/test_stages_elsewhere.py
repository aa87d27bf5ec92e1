"""Sides that are not run here: what is asked for, and what is decided all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hypocenter.align.engine import How, align
from hypocenter.align.plan import plan_of


def _log(path: Path, seed: int, gap: float = 0.0, n: int = 400) -> str:
    chance = np.random.default_rng(seed)
    losses = 2.0 + 3.0 * np.exp(-np.arange(n) / 100) + 0.004 * chance.standard_normal(n)
    losses[n // 2 :] += gap
    lines = ["step,loss,lr", *(f"{step},{loss:.6f},0.001" for step, loss in enumerate(losses, 1))]
    path.write_text("\n".join(lines) + "\n")
    return path.name


def _plan(folder: Path, gap: float):
    baseline = {
        "long": _log(folder / "a.csv", 1),
        "repeat-1": _log(folder / "b.csv", 2),
        "repeat-2": _log(folder / "c.csv", 3),
    }
    sides = {"baseline": {"logs": baseline}, "candidate": {"logs": {"long": _log(folder / "d.csv", 4, gap)}}}
    return plan_of(sides | {"stages": {"skip": [1, 2, 3, 4, 5]}}, folder / "plan.toml")


def test_logs_of_long_runs_alone_pass_or_stop_at_stage_7(tmp_path: Path) -> None:
    good = align(_plan(tmp_path, 0.0))
    bad = align(_plan(tmp_path, 0.1))

    assert good.stages[6].verdict == good.stages[7].verdict == "passed", good.sentence
    assert (bad.status, bad.stage) == ("stopped", 7)
    assert bad.stages[7].step is not None
    assert abs(bad.stages[7].step - 200) < 10


def test_recordings_that_are_not_there_are_asked_for_with_the_command(tmp_path: Path) -> None:
    side = {"recordings": "brought", "command": "python train.py"}

    found = align(plan_of({"baseline": side, "candidate": side}, tmp_path / "plan.toml"), How())

    assert found.status == "cannot-tell"
    asked = [stage.next[0] for stage in found.stages[1:8]]
    assert all(line.startswith("hypocenter run --out ") and line.endswith("python train.py") for line in asked)
    assert "--out steps --level modules --sketch" in asked[0]
    assert "--impose-lr 0" in asked[4]
    assert [stage.verdict for stage in found.stages[1:8]] == ["cannot-tell"] * 7
