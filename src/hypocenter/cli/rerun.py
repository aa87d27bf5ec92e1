"""Run a recorded program again, only until the step that failed has been searched for a cure without a budget."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hypocenter.align.children import end
from hypocenter.cli.say import say
from hypocenter.diagnose.exhibits import Exhibit, decode, load
from hypocenter.errors import HypocenterError, NoRecordingError
from hypocenter.nouns import Run
from hypocenter.record.layout import EVIDENCE_FILE
from hypocenter.record.reader import open_run

POLL_S = 0.5  # between two looks for the evidence


class RerunError(HypocenterError):
    """The recorded program cannot be run again."""

    slug = "cannot-rerun"


def exhibits_of_rerun(run: Run) -> tuple[Exhibit, ...]:
    """Run it again, with a full search at the first failure, and end it then. Its output goes to stderr.

    Raises:
        RerunError: the recording does not say what was run, or the folder is gone.
    """
    folder = _checked(run)
    with tempfile.TemporaryDirectory(prefix="hypocenter-cure-") as scratch:
        out = Path(scratch) / "run"
        words = [
            sys.executable,
            "-m",
            "hypocenter",
            "run",
            "--out",
            str(out),
            "--cure",
            "full",
            *_level(run),
            *run.command,
        ]
        say(f"running again until the step that failed: {shlex.join(run.command)}  (in {folder})")
        child = subprocess.Popen(words, cwd=folder, stdout=2, start_new_session=True, env=_environment())
        try:
            while child.poll() is None and not _is_searched(out):
                time.sleep(POLL_S)
        finally:
            end(child)
        try:
            recording = open_run(out)
        except NoRecordingError:
            return ()
        return load(recording.evidence_files(), out).found


def _checked(run: Run) -> Path:
    folder = Path(run.folder) if run.folder else Path.cwd()
    if not run.command:
        raise RerunError(
            "the recording does not say what was run",
            where=run.name,
            fix="record again with hypocenter run --cure full PROGRAM",
        )
    if not folder.is_dir():
        raise RerunError(
            "the program cannot be run again here",
            where=str(folder),
            why="the folder it was started in does not exist on this machine",
            fix="run this command where the program was recorded",
        )
    return folder


def _environment() -> dict[str, str]:
    """This process's own, with the folders of PYTHONPATH as they are seen from here; no options of another session."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER_")}
    folders = [folder for folder in kept.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return kept | {"PYTHONPATH": os.pathsep.join(str(Path(folder).absolute()) for folder in folders)}


def _level(run: Run) -> Sequence[str]:
    level = run.config.get("level")
    return ("--level", level) if level in ("sentinel", "modules") else ()


def _is_searched(out: Path) -> bool:
    for path in out.glob(f"rank-*/bundles/*/{EVIDENCE_FILE}"):
        with contextlib.suppress(OSError, ValueError):  # half written
            if decode(path.read_bytes()).cure is not None:
                return True
    return False
