"""An ordinary program of this folder: how it is started plain and under Hypocenter, and what each left behind."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import warm

HERE = Path(__file__).parent
ORDINARY = sorted((HERE / "ordinary").glob("*.py"))
SECONDS = 120  # a program takes about half a second; machines under load take longer


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run left behind. `stderr` is the program's own part, `said` is what Hypocenter wrote around it."""

    exit_code: int
    stdout: str
    stderr: str
    said: str = ""
    diagnosis: dict[str, Any] | None = None

    @property
    def status(self) -> str:
        """healthy, findings, cannot-tell, or missing where nothing was recorded."""
        return "missing" if self.diagnosis is None else self.diagnosis["status"]

    @property
    def alarms(self) -> list[str]:
        """Findings of warning or error, one line each."""
        findings = self.diagnosis["findings"] if self.diagnosis else []
        return [f"{f['code']} step {f['step']} {f['site']}: {f['title']}" for f in findings if f["severity"] != "note"]


def run_plain(script: Path) -> Outcome:
    """The program alone."""
    launcher = _launcher(script) or [sys.executable]
    done = warm.run([*launcher, str(script)], env=environment(), timeout=SECONDS, cwd=script.parent)
    return Outcome(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_recorded(script: Path, level: str, out: Path, *options: str) -> Outcome:
    """The program under `hypocenter run`, recording into `out`."""
    command = [sys.executable, "-m", "hypocenter", "run", "--out", str(out), "--level", level, *options]
    command += [*_launcher(script), str(script)]
    done = warm.run(command, env=environment(), timeout=SECONDS, cwd=script.parent)
    own, said = _parted(done.stderr)
    answer = out / "diagnosis.json"
    diagnosis = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else None
    return Outcome(exit_code=done.returncode, stdout=done.stdout, stderr=own, said=said, diagnosis=diagnosis)


def environment() -> dict[str, str]:
    """One thread, no options from outside, this checkout's package."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    source = str(HERE.parents[1] / "src")
    path = os.pathsep.join([source, str(HERE)])  # what a watched program loads is beside this file
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _launcher(script: Path) -> list[str]:
    is_two = "To be run by torchrun with two ranks" in script.read_text(encoding="utf-8")[:400]
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    return [torchrun, "--standalone", "--nproc-per-node", "2"] if is_two else []


def _parted(stderr: str) -> tuple[str, str]:
    """What stands between the first line of ours and the blank line or note that our summary begins with."""
    first, _, rest = stderr.partition("\n")
    ends = [at for mark in ("\nloss ", "\n\n", "\ncannot tell", "note: ") if (at := rest.find(mark)) >= 0]
    end = min(ends, default=len(rest))
    return rest[:end], f"{first}\n{rest[end:]}"
