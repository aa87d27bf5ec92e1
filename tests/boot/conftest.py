"""A job in miniature: Python processes with the shim, a fake torch, and a session that only notes its start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
SHIM = SRC / "hypocenter" / "boot" / "shim"

FAKE_TORCH = """
from . import nn
complete = True
"""
FAKE_SESSION = """
import os, pathlib, sys
def start_from_env(framework):
    whole = getattr(sys.modules[framework], "complete", False)
    with pathlib.Path(os.environ["HYPOCENTER_RUN"], "started").open("a") as file:
        file.write(f"{os.getpid()} {'whole' if whole else 'partial'}\\n")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run directory and one folder of packages that its processes can import."""

    folder: Path
    python: str = sys.executable

    def write(self, name: str, text: str) -> Path:
        """A file in the folder that comes after the shim on PYTHONPATH."""
        path = self.folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *args: str, shim: bool = True, expect: int = 0) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments in the job."""
        paths = [str(SHIM)] * shim + [str(self.folder / "packages")]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HYPOCENTER_", "PYTHON"))}
        env = kept | {"PYTHONPATH": os.pathsep.join(paths), "HYPOCENTER_RUN": str(self.folder)}
        done = subprocess.run(
            [self.python, *args], env=env, cwd=self.folder, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == expect, done.stderr
        return done

    def in_new_environment(self) -> tuple[Job, Path]:
        """The same job with a Python of its own, and that Python's site-packages."""
        home = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        return replace(self, python=str(home / "bin" / "python")), next(home.glob("lib/python*/site-packages"))

    def remove(self, package: str) -> None:
        """Take a package out of the folder again."""
        shutil.rmtree(self.folder / "packages" / package)

    @property
    def started(self) -> list[str]:
        """One word for each session that was started: whether torch was whole by then."""
        path = self.folder / "started"
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(folder=tmp_path)
    made.write("torch/__init__.py", FAKE_TORCH)
    made.write("torch/nn.py", "")
    made.write("mindspore/__init__.py", FAKE_TORCH)
    made.write("mindspore/nn.py", "")
    made.write("hypocenter/__init__.py", "")
    made.write("hypocenter/session.py", FAKE_SESSION)
    return made
