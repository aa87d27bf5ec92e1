"""Ways to die: none is called healthy, each is told with the last step and the place, and the program is left its own.

A drill runs the program by itself and recorded; both must say and end the same.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm

from hypocenter.cli.commands.check import exit_code
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Diagnosis, Finding
from hypocenter.record.reader import open_run

PROGRAM = Path(__file__).with_name("dying.py")
FINDINGS, CANNOT_TELL = 1, 5
KILLED, TERMINATED, INTERRUPTED, CRASHED = (
    -number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV)
)


@dataclass(frozen=True, kw_only=True)
class Death:
    """What is to come of one way to die."""

    way: str
    ends: int  # the program's own exit code
    title: str = ""  # of the finding
    why: str = ""  # of "cannot tell"
    phase: str | None = None
    line: str = ""  # the text of the line that is named
    cause: str = "program-error"
    samples: tuple[int, ...] = ()


DEATHS = [
    Death(way="data", ends=1, title="died of KeyError", line='raise KeyError("row without a label")'),
    Death(way="model", ends=1, title="died of ValueError", phase="forward", line='raise ValueError("no such head")'),
    Death(way="loss", ends=1, title="died of ArithmeticError", phase="loss", line="raise ArithmeticError("),
    Death(way="optimizer", ends=1, title="died of RuntimeError", phase="optimizer", line="raise RuntimeError("),
    Death(way="memory", ends=1, title="ran out of memory", line="torch.empty(1 << 50)", cause="out-of-memory"),
    Death(way="python-memory", ends=1, title="ran out of memory", line="bytearray(1 << 60)", cause="out-of-memory"),
    Death(
        way="token", ends=1, title="died of IndexError", phase="forward", line="hidden = self.tokens(ids)",
        cause="index-out-of-range", samples=(2,),
    ),
    Death(
        way="label", ends=1, title="died of IndexError", phase="loss", line="loss = nn.functional.cross_entropy(",
        cause="index-out-of-range", samples=(3,),
    ),
    Death(
        way="gather", ends=1, title="died of RuntimeError", phase="forward", line="hidden = hidden.gather(",
        cause="index-out-of-range",
    ),
    Death(
        way="advanced", ends=1, title="died of IndexError", phase="forward", line="hidden = hidden[:, torch.tensor(",
        cause="index-out-of-range",
    ),
    Death(
        way="segmentation-fault", ends=CRASHED, title="crashed (Segmentation fault)", line="ctypes.string_at(0)",
        cause="unknown",
    ),
    Death(way="SIGKILL", ends=KILLED, why="the program was killed by SIGKILL in its own code"),
    Death(way="SIGTERM", ends=TERMINATED, why="the program was killed by SIGTERM in its own code"),
    Death(way="deadlock", ends=INTERRUPTED, why="the program was interrupted (KeyboardInterrupt) in its own code"),
    Death(way="os-exit", ends=0, why="the program ended without a word (SIGKILL, os._exit) in its own code"),
    Death(way="exit-3", ends=3, why="the program ended with exit code 3"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.way)
def test_a_death_is_told_and_left_as_it_is(tmp_path: Path, death: Death) -> None:
    alone = run(death.way, tmp_path)
    done = run(death.way, tmp_path, "-m", "hypocenter", "run", "--out", "r")

    found = diagnose(open_run(tmp_path / "r"))

    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    assert alone.returncode == death.ends
    assert traceback(alone.stderr) == traceback(done.stderr)
    assert found.n_steps == 6
    assert_told(found, death)


def assert_told(found: Diagnosis, death: Death) -> None:
    if death.title:
        (finding,) = found.findings
        assert (found.status, exit_code(found, "error")) == ("findings", FINDINGS)
        assert_placed(finding, death)
    else:
        assert (found.status, exit_code(found, "error"), found.findings) == ("cannot-tell", CANNOT_TELL, ())
        assert death.why in found.why[0]
        assert "nothing wrong was found in steps 0 to 5" in found.why[-1]
        assert death.way == "exit-3" or "of step 6" in found.why[0]


def assert_placed(finding: Finding, death: Death) -> None:
    assert finding.title == f"the program {death.title} at step 6"
    assert (finding.code, finding.severity, finding.step) == ("HC324", "error", 6)
    assert (finding.phase, finding.cause, finding.samples) == (death.phase, death.cause, death.samples)
    assert finding.source is not None
    assert Path(finding.source.file).name == "dying.py"
    assert death.line in PROGRAM.read_text(encoding="utf-8").splitlines()[finding.source.line - 1]
    assert "the last step that was completed is 5" in finding.why


def test_a_call_that_refuses_nan_is_followed_back_to_what_made_the_nan(tmp_path: Path) -> None:
    run("not-finite", tmp_path, "-m", "hypocenter", "run", "--out", "r")

    (finding,) = diagnose(open_run(tmp_path / "r")).findings

    assert (finding.code, finding.op, finding.step) == ("HC102", "aten.sqrt.default", 6)
    assert "the program died" in finding.then[-1]


def test_a_full_disk_is_told_with_the_step_at_which_the_recording_stopped(tmp_path: Path) -> None:
    alone = run("full-disk", tmp_path)
    done = run("full-disk", tmp_path, "-m", "hypocenter", "run", "--fail-on", "error", "--out", "r")

    found = diagnose(open_run(tmp_path / "r"))

    assert (alone.returncode, done.returncode, done.stdout) == (0, CANNOT_TELL, alone.stdout)
    assert (found.status, exit_code(found, "error")) == ("cannot-tell", CANNOT_TELL)
    assert found.why[0] == f"the recording stopped after step {found.n_steps - 1}, the program went on to step 12"


def test_a_program_that_ends_well_is_healthy(tmp_path: Path) -> None:
    done = run("well", tmp_path, "-m", "hypocenter", "run", "--fail-on", "error", "--out", "r")

    assert done.returncode == 0
    assert diagnose(open_run(tmp_path / "r")).status == "healthy"


def test_one_that_is_stopped_by_our_own_option_has_ended_well(tmp_path: Path) -> None:
    run("well", tmp_path, "-m", "hypocenter", "run", "--stop-after-step", "3", "--out", "r")

    found = diagnose(open_run(tmp_path / "r"))

    assert (found.status, found.n_steps) == ("healthy", 4)


def run(way: str, folder: Path, *ours: str):
    env = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    return warm.run([sys.executable, *ours, str(PROGRAM), way], env=env, timeout=120, cwd=folder)


def traceback(stderr: str) -> list[str]:
    """The program's own frames and the exception: frames of libraries differ where a module has hooks."""
    start = stderr.find("Traceback (most recent call last)")
    if start < 0:
        return []
    lines = stderr[start:].splitlines()
    end = next((i for i, line in enumerate(lines) if i and line and not line.startswith(" ")), len(lines) - 1)
    own = [lines[i] for i in range(end) if PROGRAM.name in lines[i]]
    return [*own, lines[end]]
