"""PROGRAM of `hypocenter run`: which executable it is, found before anything is started."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hypocenter.cli.config_options import spelled_out
from hypocenter.errors import UnknownNameError


def argv_of(program: Sequence[str]) -> list[str]:
    """Return the words to execute, the first one an absolute path; everything after PROGRAM is left as it is.

    `train.py` and a folder with `__main__.py` are run by this Python, `-m pkg.mod` too; anything else is a path, or a
    command looked for beside this Python and then on PATH.

    Raises:
        UnknownNameError: there is no such file or command; names the nearest.
    """
    name = program[0]
    if name.startswith("-m") or _is_python(Path(name)):
        return [sys.executable, *program]
    if name.endswith((".py", ".pyw")):
        raise UnknownNameError(f"no file {name!r}", where=str(Path.cwd()), fix=_nearest_file(Path(name)))
    found = name if "/" in name and Path(name).is_file() and os.access(name, os.X_OK) else None
    if "/" not in name:
        found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise UnknownNameError(
            f"no program {name!r}",
            where="PROGRAM of hypocenter run",
            why=_why_not(name),
            fix="give a .py file, -m MODULE, or a command on PATH such as torchrun",
        )
    return [str(Path(found).absolute()), *program[1:]]


def _is_python(path: Path) -> bool:
    return (path.suffix in (".py", ".pyw") and path.exists()) or (path / "__main__.py").is_file()


def _why_not(name: str) -> str:
    if "/" not in name:
        return "it is neither beside this Python nor on PATH"
    if Path(name).is_dir():
        return "it is a folder without __main__.py"
    return "it is not executable" if Path(name).exists() else "there is no such file"


def _nearest_file(path: Path) -> str:
    try:
        others = [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    except OSError:
        return f"there is no folder {str(path.parent)!r}"
    close = difflib.get_close_matches(path.name, others, n=1, cutoff=0.5)
    return f"did you mean {str(path.with_name(close[0]))!r}?" if close else "give the path of the script"


class ProgramCommand(click.Command):
    """A command whose options end at PROGRAM (or `-m`): what follows is the program's, whatever it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the words before click sees them, so that no option of the program can be taken for ours."""
        at = self._program_starts(args)
        return super().parse_args(ctx, [*args[:at], "--", *args[at:]] if at < len(args) else args)

    def own_words(self, args: Sequence[str]) -> list[str]:
        """Return the words before PROGRAM."""
        words = list(args)
        return words[: self._program_starts(words)]

    def _program_starts(self, args: list[str]) -> int:
        """Return the index of PROGRAM: of `-m`, or of the first word that is no option and no value of one."""
        takes_value = {name for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and not args[at].startswith("-m"):
            if args[at] == "--":
                del args[at]
                return at
            args[at] = spelled_out(args, at)
            at += 2 if args[at] in takes_value else 1
        return at
