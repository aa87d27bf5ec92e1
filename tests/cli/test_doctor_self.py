"""`hypocenter doctor --self`: one screen about Hypocenter itself."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest
from recordings import run

from hypocenter import __version__
from hypocenter.cli import itself
from hypocenter.doctor.answer import Answer
from hypocenter.json_answer import published


def of(said_out: str) -> dict[str, dict[str, object]]:
    return {check["code"]: check for check in json.loads(said_out)["checks"]}


def test_it_is_one_screen_and_all_is_well() -> None:
    said = run("doctor", "--self")

    assert said.code == 0, said.out
    assert said.out.startswith("healthy: 8 checks")
    assert f"hypocenter {__version__}" in said.out
    assert len(said.out.splitlines()) <= 24


def test_json_is_the_doctors(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run("doctor", "--self", "--json")

    jsonschema.validate(json.loads(said.out), published(Answer))
    assert of(said.out)["self.frameworks"]["status"] == "ok"
    assert "torch" in str(of(said.out)["self.extras"]["what"])


def test_a_package_that_is_missing_is_a_problem_with_the_line_to_paste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(itself, "_requires", lambda: ["no-such-package>=1", 'mcp>=2; extra == "mcp"'])

    said = run("doctor", "--self", "--json")

    assert said.code == 1
    assert of(said.out)["self.packages"]["fix"] == ["pip install no-such-package"]


def test_what_is_not_installed_cannot_tell_and_no_framework_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(itself.metadata, "requires", gone)
    monkeypatch.setattr(itself, "find_spec", lambda _name: None)

    found = of(run("doctor", "--self", "--json").out)

    assert [found[f"self.{name}"]["status"] for name in ("packages", "extras")] == ["cannot-tell", "cannot-tell"]
    assert found["self.frameworks"]["status"] == "warning"


def test_a_place_that_cannot_be_written_to_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(itself.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))

    found = of(run("doctor", "--self", "--json").out)

    assert "temporary files (No such file or directory)" in str(found["self.places"]["what"])


def test_a_part_that_does_not_work_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError("libarrow.so: cannot open")

    monkeypatch.setattr(itself, "_native", broken)
    said = run("doctor", "--self")

    assert said.code == 1
    assert "libarrow.so: cannot open" in said.out
