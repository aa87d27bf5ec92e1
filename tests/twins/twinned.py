"""Ask for a twin of a program, its runs in forks of a warm Python."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from started import start

from hypocenter.cli.commands.run import environment
from hypocenter.config import Config
from hypocenter.twins.answer import Twin
from hypocenter.twins.change import Asked, by_name
from hypocenter.twins.runs import Made, Runs

PROGRAMS = Path(__file__).parent / "programs"


class Once(Runs):
    """Runs of which some are made once for many twins, and copied with the files that they have left.

    Args:
        kept: folder of those that were made before.
        shared: names of the runs that are the same in all twins.
        repeats: a run that is to be made again is made again, and not copied.
    """

    def __init__(self, kept: Path, shared: tuple[str, ...], repeats: bool, **options: Any) -> None:
        super().__init__(**options)
        object.__setattr__(self, "kept", kept)
        object.__setattr__(self, "shared", shared)
        object.__setattr__(self, "repeats", repeats)

    def make(self, name: str, config: Config, **options: Any) -> Made:
        """As `Runs.make`."""
        if name.endswith("-again") and not self.repeats:
            shutil.copytree(self.base / name.removesuffix("-again"), self.base / name)
            return Made(directory=(self.base / name).absolute(), code=0, seconds=0.0)
        kept, own, files = self.kept / name, self.base / name, f"{options.get('folder') or name}.files"
        if name not in self.shared:
            return Runs.make(self, name, config, **options)
        if not kept.is_dir():
            made = Runs.make(self, name, config, **options)
            assert made.code == 0, made.tail
            shutil.copytree(own, kept)
            shutil.copytree(self.base / files, self.kept / files)
            return made
        shutil.copytree(kept, own)
        shutil.copytree(self.kept / files, self.base / files)
        self.folders.append((self.base / files).absolute())
        return Made(directory=own.absolute(), code=0, seconds=0.0)


def twin(
    asked: str,
    folder: Path,
    name: str,
    *words: str,
    kept: Path | None = None,
    shared: tuple[str, ...] = (),
    repeats: bool = False,
    **options: Any,
) -> Twin:
    """What `hypocenter twin ASKED NAME WORDS` answers; the runs in forks of a warm Python."""
    change, _, value = asked.partition("=")
    program = (str(PROGRAMS / name), *words)
    runs = Once(
        kept or folder / "kept",
        shared,
        repeats,
        program=program,
        argv=(sys.executable, *program),
        base=folder,
        environment=environment,
        start=start,
    )
    return by_name(change).make(Asked(runs=runs, value=value, **options))
