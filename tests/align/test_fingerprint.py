from __future__ import annotations

from pathlib import Path

from hypocenter.align.fingerprint import of_side
from hypocenter.align.plan import Plan, plan_of


def _plan(folder: Path, **side: object) -> Plan:
    baseline = {"command": "python train.py --config a.yaml", **side}
    return plan_of({"baseline": baseline, "candidate": {"command": "x"}}, folder / "plan.toml")


def test_changes_with_the_script_what_it_imports_and_files_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import model\nfrom parts import head\n")
    (tmp_path / "model.py").write_text("import deep\n")
    (tmp_path / "deep.py").write_text("x = 1\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "head.py").write_text("y = 1\n")
    (tmp_path / "a.yaml").write_text("lr: 1\n")
    (tmp_path / "other.py").write_text("z = 1\n")
    (tmp_path / "data.json").write_text("[]")
    first = of_side(_plan(tmp_path, files=["*.json"]), "baseline")

    seen = {first}
    for name in ("train.py", "model.py", "deep.py", "parts/head.py", "a.yaml", "data.json"):
        path = tmp_path / name
        path.write_text(path.read_text() + "\n")
        seen.add(of_side(_plan(tmp_path, files=["*.json"]), "baseline"))
    (tmp_path / "other.py").write_text("z = 2\n")

    assert len(seen) == 7
    assert of_side(_plan(tmp_path, files=["*.json"]), "baseline") in seen


def test_changes_with_command_and_variables_only_of_its_own_side(tmp_path: Path) -> None:
    plain, other = _plan(tmp_path), _plan(tmp_path, env={"A": "1"})

    assert of_side(plain, "baseline") != of_side(other, "baseline")
    assert of_side(plain, "candidate") == of_side(other, "candidate")


def test_a_script_that_cannot_be_parsed_is_a_file_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def (")

    assert of_side(_plan(tmp_path), "baseline")
