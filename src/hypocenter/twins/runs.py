"""The runs of a twin: one program started again and again, each time recorded, with one thing changed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from hypocenter.align.children import Start, start
from hypocenter.config import Config
from hypocenter.errors import ConfigError, ExistsError, HypocenterError
from hypocenter.record.layout import CHANGES_FILE, REFUSED_FILE, new_run_directory, rank_directories
from hypocenter.record.run_file import finish_run, start_run

OUTPUT_FILE = "output.txt"
TAIL = 5  # lines of a program's output that tell why it failed
FOLDER = "{folder}"
"""What stands in the program's words for a folder of the run's own."""
Environment = Callable[[Mapping[str, str], Path, Config], dict[str, str]]


class ProgramFailedError(HypocenterError):
    """A run ended with an error, or left nothing to compare."""

    slug = "program-failed"
    exit_code = 5


class NotApplicableError(HypocenterError):
    """The change cannot be made in this program, or changes nothing there."""

    slug = "change-does-not-apply"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One run of the program."""

    directory: Path
    code: int
    seconds: float

    @property
    def name(self) -> str:
        """The name of the run in the twin: that of its directory."""
        return self.directory.name

    @property
    def tail(self) -> str:
        """The last lines that the program wrote; empty when it ended well."""
        if self.code == 0:
            return ""
        try:
            lines = (self.directory / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-TAIL:])

    @property
    def noted(self) -> dict[str, list[str]]:
        """What the processes of the run noted, by change."""
        return noted(self.directory)

    @property
    def refused(self) -> str:
        """Why the process was not allowed to train, as it could not do what was asked for; "" if it was."""
        try:
            return (self.directory / REFUSED_FILE).read_text(encoding="utf-8")
        except OSError:
            return ""

    def recorded(self) -> Made:
        """Return the run itself if it ended well and recorded a step.

        Raises:
            NotApplicableError: what was asked for cannot be done in this program.
            ProgramFailedError: it did not end well, or no step of it was recorded.
        """
        if why := self.refused:
            first, *others = why.partition("]: ")[2].splitlines() or [why]
            why = next((line.partition("why: ")[2] for line in others if "why: " in line), "")
            raise NotApplicableError(first, where=f"the run {self.name!r}", why=why)
        if self.code == 0 and rank_directories(self.directory):
            return self
        how = f"ended with exit code {self.code}" if self.code else "finished no step of training"
        raise ProgramFailedError(
            f"the run {self.name!r} {how}",
            where=str(self.directory / OUTPUT_FILE),
            why=" / ".join(line for line in self.tail.splitlines() if line.strip()) or "it said nothing of why",
            fix="mend it, or give it other words",
        )


def from_here(directory: Path) -> str:
    """Return the path of a directory as one would type it in this folder."""
    relative = os.path.relpath(directory)
    return str(directory) if relative.startswith("..") else relative


def silent(_: Made) -> None:
    """Tell nobody of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Start the program, once for each run.

    Args:
        program: its words, as they were typed.
        argv: the same, the first an absolute path.
        base: folder of the runs.
        environment: what a recorded program gets, of our own environment, its run directory and its options.
        start: runs a command to its end.
        said: told of each run when it is over.
    """

    program: tuple[str, ...]
    argv: tuple[str, ...]
    base: Path
    environment: Environment
    force: bool = False
    start: Start = start
    said: Callable[[Made], None] = silent
    made: list[Made] = field(default_factory=list[Made])
    folders: list[Path] = field(default_factory=list[Path])  # that stand for `{folder}`

    def make(
        self,
        name: str,
        config: Config,
        *,
        words: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        folder: str = "",
        n_ranks: int = 0,
    ) -> Made:
        """Run it once; its output goes to output.txt in the run's directory.

        Args:
            name: of the run.
            config: what is recorded and imposed.
            words: that come after the program's own.
            variables: of the environment.
            n_ranks: of a job of torchrun that it is made; 0: it is started as it is.
            folder: name of the folder that `{folder}` stands for; the run's own name when empty.

        Raises:
            ExistsError: there is such a recording, and `force` is off.
        """
        directory = new_run_directory(str(self.base / name), self.force).absolute()
        for left in (CHANGES_FILE, REFUSED_FILE):
            (directory / left).unlink(missing_ok=True)
        settings = replace(config, out=str(directory))
        argv = [*(self._under_torchrun(n_ranks) if n_ranks else self.argv), *words]
        if any(FOLDER in word for word in argv):
            files = str(self._files(folder or name))
            argv = [word.replace(FOLDER, files) for word in argv]
        start_run(directory, (*self.program, *words), asdict(settings), 1, {})
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER_")}
        begun = time.monotonic()
        code = self.start(
            argv,
            env=self.environment(environ | dict(variables or {}), directory, settings),
            cwd=Path.cwd(),
            output=directory / OUTPUT_FILE,
            timeout_s=None,
        )
        finish_run(directory, "finished" if code == 0 else "failed", code)
        (directory / ".reached").unlink(missing_ok=True)
        self.made.append(Made(directory=directory, code=code, seconds=time.monotonic() - begun))
        self.said(self.made[-1])
        return self.made[-1]

    def _under_torchrun(self, n_ranks: int) -> tuple[str, ...]:
        """Return the words that start the program as ranks of one job.

        Raises:
            ConfigError: it is no Python program, or starts several processes itself.
        """
        if self.argv[0] != sys.executable:
            raise ConfigError(
                "the program is started by a launcher already",
                where=self.argv[0],
                fix="give the script itself: hypocenter twin ranks -- train.py",
            )
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        return (torchrun, "--standalone", "--nproc-per-node", str(n_ranks), *self.argv[1:])

    def _files(self, name: str) -> Path:
        """Return the folder that stands for `{folder}`, empty when it is first asked for."""
        path = (self.base / f"{name}.files").absolute()
        if path in self.folders:
            return path
        if path.is_dir() and any(path.iterdir()):
            if not self.force:
                raise ExistsError(
                    "the folder of a run holds files",
                    where=str(path),
                    fix="choose another with --out, or add --force to replace it",
                )
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        self.folders.append(path)
        return path


def split(words: str) -> tuple[str, ...]:
    """Split a text into words, as a shell does."""
    return tuple(shlex.split(words))


def noted(run: Path) -> dict[str, list[str]]:
    """Return what was noted of each change, in order, without repetitions and lines that cannot be read."""
    try:
        lines = (run / CHANGES_FILE).read_bytes().splitlines()
    except OSError:
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        try:
            change, what = msgspec.json.decode(line, type=tuple[str, str])
        except msgspec.DecodeError:
            continue
        if what not in found.setdefault(change, []):
            found[change].append(what)
    return found
