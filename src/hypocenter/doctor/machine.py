"""A machine as plain data: environment, files below a root, answers of programs, what torch said. Checks see only it.

A test builds one with a root of its own and canned answers, so every fault can be had without the hardware.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypocenter.toml import tomllib

LONGEST_CHAIN = 40  # symbolic links that Linux follows before it gives up (MAXSYMLINKS, path_resolution(7))
LARGEST_TEXT_BYTES = 1 << 20  # of a version file or header; a larger one is none
TABLES = Path(__file__).with_name("tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a program answered. `code` is None when it did not end in time and was stopped."""

    code: int | None = 0
    text: str = ""
    errors: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the program ended with success."""
        return self.code == 0


Ask = Callable[[tuple[str, ...]], "Reply | None"]  # a command line in; None when there is no such program


def nobody(argv: tuple[str, ...]) -> Reply | None:
    """Answer None to every program: a machine without programs."""
    del argv
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the checks may look at. Paths are absolute, as a program on that machine writes them."""

    environ: Mapping[str, str] = field(default_factory=dict)
    root: Path = Path("/")
    ask: Ask = nobody
    torch: Mapping[str, Any] = field(default_factory=dict)  # what hypocenter.examine.torch_facts prints
    deepspeed: Mapping[str, Any] = field(default_factory=dict)  # what hypocenter.examine.deepspeed_facts prints
    packages: Mapping[str, str] = field(default_factory=dict)  # installed distributions, lower case: version
    host: str = ""
    n_cores: int = 0
    builds: bool | None = None  # whether CUDA extensions are to be built here; None: told by what is installed

    def resolved(self, path: str, depth: int = 0) -> str:
        """Return the path with symbolic links followed, those to absolute targets within the root."""
        done = ""
        for part in [part for part in posixpath.normpath(path).split("/") if part]:
            step = f"{done}/{part}"
            on_disk = self.root / step.lstrip("/")
            if depth < LONGEST_CHAIN and on_disk.is_symlink():
                target = os.readlink(on_disk)  # noqa: PTH115 - pathlib's would not keep a target text as it is
                done = self.resolved(target if target.startswith("/") else f"{done}/{target}", depth + 1).rstrip("/")
            else:
                done = step
        return done or "/"

    def on_disk(self, path: str) -> Path:
        """Return where the machine's path is on this one, symbolic links followed."""
        return self.root / self.resolved(path).lstrip("/")

    def is_dir(self, path: str) -> bool:
        """Return whether there is such a folder."""
        return path.startswith("/") and self.on_disk(path).is_dir()

    def is_file(self, path: str) -> bool:
        """Return whether there is such a file."""
        return path.startswith("/") and self.on_disk(path).is_file()

    def names(self, folder: str, pattern: str = "") -> list[str]:
        """Return the sorted names in a folder that fully match the regular expression; [] if it cannot be read."""
        try:
            found = sorted(entry.name for entry in self.on_disk(folder).iterdir())
        except OSError:
            return []
        return [name for name in found if not pattern or re.fullmatch(pattern, name)]

    def text(self, path: str) -> str:
        """Return the text of a small file; empty when there is none."""
        try:
            with self.on_disk(path).open("rb") as file:
                return file.read(LARGEST_TEXT_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def search(self, variable: str) -> list[str]:
        """Return the folders of PATH, LD_LIBRARY_PATH or the like, in their order, without empty entries."""
        return [entry for entry in self.environ.get(variable, "").split(os.pathsep) if entry]

    def programs(self, name: str) -> list[str]:
        """Return every program of that name on PATH; the first is the one that runs."""
        found = [f"{folder.rstrip('/')}/{name}" for folder in self.search("PATH")]
        return [path for path in dict.fromkeys(found) if self.is_file(path)]

    def package(self, name: str) -> str:
        """Return the version of an installed distribution; empty when it is not installed."""
        return self.packages.get(name.lower().replace("_", "-"), "")

    @property
    def has_torch(self) -> bool:
        """Whether torch could be imported and asked."""
        return self.torch.get("status") == "imported"


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers: (12, 4, 1) of `12.4.1`, (2, 6, 0) of `2.6.0+cu124`; () when there are none."""
    match = re.match(r"\s*[vV]?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def release(version: str) -> str:
    """Return the first two numbers: `12.4` of `12.4.131`; empty when there are not two."""
    parts = version_numbers(version)
    return f"{parts[0]}.{parts[1]}" if len(parts) > 1 else ""


def major(version: str) -> int | None:
    """Return the first number: 12 of `12.4`; None when there is none."""
    return next(iter(version_numbers(version)), None)


@functools.cache
def version_table(name: str) -> dict[str, Any]:
    """Read a table of `tables/` by the name of its file."""
    return tomllib.loads((TABLES / f"{name}.toml").read_text(encoding="utf-8"))
