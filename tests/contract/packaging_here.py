"""Packages made on this machine without a network, and what they need beside them."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

ENDINGS = {"sdist": ".tar.gz", "wheel": ".whl"}


def built(kind: Literal["sdist", "wheel"], source: Path, folder: Path) -> Path:
    """The sdist or wheel of a source tree, made in `folder`."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    return next(path for path in folder.iterdir() if path.name.endswith(ENDINGS[kind]))


def linked(folder: Path, requirements: list[str]) -> Path:
    """A folder with the distributions that are required, those that these require, and nothing else."""
    folder.mkdir()
    waiting, seen = [Requirement(text) for text in requirements], set[str]()
    while waiting:
        wanted = waiting.pop()
        if wanted.name.lower() in seen or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(wanted.name.lower())
        found = metadata.distribution(wanted.name)
        waiting += [Requirement(text) for text in found.requires or ()]
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
    return folder
