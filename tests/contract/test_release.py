"""What the release workflow does, done here: the sdist, the wheel made of it, its metadata, its reading commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging_here import built, linked

ROOT = Path(__file__).resolve().parents[2]

WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def script(job: str, name: str) -> str:
    """What a step of the workflow runs."""
    return next(step["run"] for step in JOBS[job]["steps"] if step.get("name") == name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the sdist, as `python -m build` does."""
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(built("sdist", ROOT, folder)) as file:
        file.extractall(folder / "sdist", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return built("wheel", next((folder / "sdist").iterdir()), folder)


def metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return file.read(name).decode("utf-8")


def test_the_description_can_be_shown(wheel: Path) -> None:
    told = Parser().parsestr(metadata(wheel))

    assert told["Description-Content-Type"] == "text/markdown"
    assert len(told.get_payload()) > 1000
    assert all(told[name] for name in ("Version", "Summary", "Requires-Python"))


def test_a_tag_is_compared_with_the_version(wheel: Path) -> None:
    version = Parser().parsestr(metadata(wheel))["Version"]
    words, told = script("build", "The tag is the version"), os.environ | {"GITHUB_REF_NAME": f"v{version}"}

    assert subprocess.run(["bash", "-ec", words], cwd=ROOT, env=told, check=False).returncode == 0
    told["GITHUB_REF_NAME"] = "v0.0.0"
    assert subprocess.run(["bash", "-ec", words], cwd=ROOT, env=told, check=False).returncode == 1


def test_every_reading_command_answers_without_torch(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "wheel")
    extra = re.search(r"\.whl\)\[(\w+)\]", str(JOBS["read-without-torch"]["steps"]))
    assert extra is not None
    needed = [Requirement(text) for text in Parser().parsestr(metadata(wheel)).get_all("Requires-Dist") or ()]
    wanted = [one for one in needed if not one.marker or one.marker.evaluate({"extra": extra[1]})]
    packages = linked(tmp_path / "packages", [str(one).partition(";")[0] for one in wanted])
    shutil.copytree(ROOT / "tests/golden/format-2", tmp_path / "tests/golden/format-2")
    command = tmp_path / "bin" / "hypocenter"
    command.parent.mkdir()
    base = getattr(sys, "_base_executable", sys.executable)  # of the environment: it has none of its packages
    command.write_text(f'#!/bin/sh\nexec {base} -m hypocenter "$@"\n', encoding="utf-8")
    command.chmod(0o755)

    done = subprocess.run(
        ["bash", "-ec", script("read-without-torch", "Every reading command answers")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        env={
            "PATH": os.pathsep.join([str(command.parent), os.environ["PATH"]]), "PYTHONNOUSERSITE": "1",
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "wheel"), str(packages)]),
        },
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert not (packages / "torch").exists()
