"""The wheel holds what is needed and nothing else, and reads everything without torch, also where there is no POSIX."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging_here import built, linked

ROOT = Path(__file__).resolve().parents[2]
RECORDING_HALF = (
    "tap", "testing", "session", "relations", "replay", "boot", "callbacks", "examine", "summary.reducers.torch",
    "summary.reducers.mindspore", "cli.agents.server",
    "view.server", "view.serving",
)  # fmt: skip
GOLDEN = ROOT / "tests" / "golden" / "format-2"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the unpacked wheel answers, beside its declared dependencies only, with POSIX and frameworks taken away."""
    folder = tmp_path_factory.mktemp("alone")
    unpacked = folder / "hypocenter-only"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(unpacked)
    text = next(unpacked.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    needed = re.findall(r"^Requires-Dist: (.*)$", text.partition("\n\n")[0], re.MULTILINE)
    packages = linked(folder / "packages", needed)
    run, other, page = str(folder / "run"), str(GOLDEN), str(folder / "page.html")
    _copy(GOLDEN, Path(run))
    (Path(run) / "rank-00000" / "bundles" / "b").mkdir(parents=True)
    lines = {
        "check": ["check", run], "check --json": ["check", run, "--json"], "show": ["show", run], "runs": ["runs", run],
        "sql": ["show", run, "--sql", "select 1 as a"], "report": ["report", run, "-o", page],
        "diff": ["diff", other, run], "curves": ["curves", other, run], "explain": ["explain", "format-overflow"],
        "spikes": ["spikes", run], "health": ["health", run], "relations": ["relations", run], "cure": ["cure", run],
        "headroom": ["headroom", run], "list": ["list"], "schema": ["schema", "diagnosis"], "skill": ["skill"],
        "doctor --self": ["doctor", "--self"], "help": ["--help"], "run": ["run", "train.py"],
        "replay": ["replay", f"{run}/rank-00000/bundles/b", "--json"], "mcp": ["mcp", run],
    }  # fmt: skip
    skipped = [f"hypocenter.{name}" for name in RECORDING_HALF]
    (folder / "request.json").write_text(json.dumps({"lines": lines, "skipped": skipped}), encoding="utf-8")
    base = getattr(sys, "_base_executable", sys.executable)  # of the environment: it has none of its packages
    done = subprocess.run(
        [base, "-X", "warn_default_encoding", str(Path(__file__).with_name("reading_alone.py")), "request.json"],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(unpacked), str(packages)]),
            "PYTHONNOUSERSITE": "1",
        },
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if not name.endswith("/")}
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {name.removeprefix("src/") for name in tracked.stdout.split() if (ROOT / name).is_file()}

    assert {name for name in inside if ".dist-info/" not in name} == ours
    assert {
        "hypocenter/py.typed",
        "hypocenter/report/page/shell.html.j2",
        "hypocenter/cli/agents/skill.md.j2",
    } <= inside


def test_every_module_of_the_reading_half_is_imported(alone: dict[str, Any]) -> None:
    assert alone["failed"] == {}


@pytest.mark.parametrize("line", ["check", "check --json", "diff", "curves", "headroom", "spikes", "relations"])
def test_what_judges_a_recording_judges_it(alone: dict[str, Any], line: str) -> None:
    said = alone["said"][line]

    assert said["code"] in (0, 1, 5), said["err"]
    assert said["out"]


@pytest.mark.parametrize(
    "line", ["show", "sql", "runs", "report", "explain", "list", "schema", "skill", "doctor --self", "help"]
)
def test_what_shows_something_shows_it(alone: dict[str, Any], line: str) -> None:
    said = alone["said"][line]

    assert said["code"] == 0, said["err"]
    assert said["out"] or line == "report"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("replay", 2, "a bundle is replayed with torch, and this Python cannot import it"),
        ("mcp", 2, "agents are served with the package mcp"),
        ("run", 2, "programs are not recorded on this system"),
        ("cure", 5, "that needs torch, or MindSpore, and this Python has neither"),
    ],
)
def test_what_needs_more_says_it_in_one_sentence(alone: dict[str, Any], line: str, code: int, words: str) -> None:
    said = alone["said"][line]

    assert words in " ".join((said["out"] + said["err"]).split()), said
    assert said["code"] == code
