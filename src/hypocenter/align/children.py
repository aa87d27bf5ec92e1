"""Start programs, with their output in a file. Nothing is left running when we are stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

PATIENCE_S = 10.0  # for a program to end when asked to


class Start(Protocol):
    """Run a command to its end and return its exit code; 124 if it took longer than `timeout_s`."""

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path, timeout_s: float | None
    ) -> int:
        """Run the command; its stdout and stderr go to `output`."""
        ...


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path, timeout_s: float | None) -> int:
    """Run it as a child process in a session of its own. Raises OSError when it cannot be started."""
    with output.open("wb") as file:
        child = subprocess.Popen(
            list(argv), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return 124  # as timeout(1)
        finally:
            end(child)


def clean_environment(environ: Mapping[str, str], cwd: Path) -> dict[str, str]:
    """Return an environment without options of another session; folders of PYTHONPATH are seen from `cwd`."""
    kept = {name: value for name, value in environ.items() if not name.startswith("HYPOCENTER_")}
    folders = [folder for folder in kept.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return kept | {"PYTHONPATH": os.pathsep.join(str((cwd / folder).absolute()) for folder in folders)}


def end(child: subprocess.Popen[bytes]) -> None:
    """End a child that leads a session, with all that it has started: first by SIGTERM, then by SIGKILL."""
    if not hasattr(os, "killpg"):  # Windows: what it has started stays
        child.kill()
        child.wait()
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PATIENCE_S)
