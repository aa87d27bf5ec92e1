"""Run a program several times in the same way, each recorded with `--op-bits` and stopped after some steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hypocenter.align.children import start
from hypocenter.cli.commands.run import environment
from hypocenter.cli.program import argv_of
from hypocenter.config import Config
from hypocenter.record.layout import new_run_directory
from hypocenter.record.run_file import finish_run, start_run

OUTPUT_FILE = "output.txt"
TAIL = 5  # lines of a program's output that tell why it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One run of the program."""

    directory: Path
    code: int
    seconds: float

    @property
    def tail(self) -> str:
        """The last lines that it wrote; empty when it ended well."""
        if self.code == 0:
            return ""
        try:
            lines = (self.directory / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-TAIL:])


def configuration(steps: int, *, deterministic: bool = False, seed: int | None = None) -> Config:
    """Digests of all operators, and nothing else that could be recorded."""
    return Config(
        op_bits=True, stop_after_step=steps - 1, deterministic=deterministic, seed=seed, replay=False, cure="off",
        replicas="never", collectives="never", agree=False,
    )  # fmt: skip


def repeat(
    program: Sequence[str], directories: Sequence[Path], config: Config, *, force: bool, said: Callable[[Repeat], None]
) -> list[Repeat]:
    """Run it once for each directory; its output goes to output.txt in there.

    Args:
        said: told of each run when it is over.

    Raises:
        UnknownNameError: there is no such program.
        ExistsError: a directory holds a recording, and `force` is off.
    """
    argv, done = argv_of(program), list[Repeat]()
    for path in directories:
        directory = new_run_directory(str(path), force).absolute()
        settings = replace(config, out=str(directory))
        start_run(directory, program, asdict(settings), 1, {})
        begun = time.monotonic()
        code = start(
            argv, env=environment(_outside(os.environ), directory, settings), cwd=Path.cwd(),
            output=directory / OUTPUT_FILE, timeout_s=None,
        )  # fmt: skip
        finish_run(directory, "finished" if code == 0 else "failed", code)
        (directory / ".reached").unlink(missing_ok=True)
        done.append(Repeat(directory=directory, code=code, seconds=time.monotonic() - begun))
        said(done[-1])
    return done


def _outside(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith("HYPOCENTER_")}
