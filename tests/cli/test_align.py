"""`hypocenter align`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hypocenter.align.plan import read_plan
from hypocenter.cli.commands.align import command
from hypocenter.errors import ConfigError, ExistsError, UnknownNameError

PLAN = '[baseline]\ncommand = "python a.py"\n[candidate]\ncommand = "python b.py"\n'


def _run(*words: str) -> Result:
    names = ["-h", "--help"]  # as in our group: click remembers those of the first context, also for later ones
    return CliRunner().invoke(command, list(words), standalone_mode=False, help_option_names=names)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def test_new_prints_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text(_run("new").stdout)

    assert read_plan(path).baseline.command == "python train.py"


def test_status_of_a_plan_that_was_never_aligned_runs_nothing_and_cannot_tell(plan: Path) -> None:
    shown = _run("status", str(plan))

    assert shown.return_value == 5
    assert shown.stdout.startswith("cannot tell: not all stages were done\n")
    assert not list(plan.parent.glob("*.align"))


def test_status_as_json_and_as_a_page(plan: Path) -> None:
    page = plan.with_name("out.html")

    shown = _run("status", str(plan), "--json", "--report", str(page))

    assert json.loads(shown.stdout)["schema"] == "hypocenter.alignment/1"
    assert page.read_text().startswith("<!doctype html>")
    assert isinstance(_run("status", str(plan), "--report", str(page)).exception, ExistsError)


def test_words_that_are_none_name_the_nearest(plan: Path) -> None:
    wrong = _run("stauts", str(plan)).exception
    stage = _run(str(plan), "--from", "backwards").exception

    assert isinstance(wrong, ConfigError)
    assert "'status'" in wrong.fix
    assert isinstance(stage, UnknownNameError)
    assert "'backward'" in stage.fix


def test_a_program_that_fails_ends_it_with_what_it_said(plan: Path) -> None:
    plan.with_name("a.py").write_text("raise RuntimeError('no such card')\n")
    plan.with_name("b.py").write_text("")

    shown = _run(str(plan))

    assert shown.return_value == 5
    assert "RuntimeError: no such card" in shown.stdout
    assert "? 1 preparation cannot tell" in shown.stdout
    assert "· 2 forward     not done" in shown.stdout
