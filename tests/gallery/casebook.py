"""The answer book: `<id>.toml` beside `<id>.py`; runs scripts under Hypocenter, compares first finding and answer.

Keys of an answer: `title`, `reference`, `level`, `felt` (how a plain run shows it: loss, grad, zero, param, nothing),
`step`, `microbatch`, `samples`; `code`, `kind`, `site`, `phase`, `op`, `param`, `cause`, `confidence`, `severity`,
`remedy` (lists: any of these); `limit` (and the actual value must be above it), `verified` (the remedy), `line_of` (the
source file's name, when it is not the script), `line_text` (part of that line), `check_line` (false: no source line is
expected), `mentions` (words that the finding's texts must hold), `is_alone` (true: nothing else is worth a warning),
`script` (when not `<id>.py`), `args`, `crashes` (the script ends with an error of its own), `launch` (what stands
before the script: ["torchrun", "--standalone", "--nproc-per-node", "2"]; such a script prints from rank 0 only).

Scripts run in forks of a Python that has torch already (tests/processes), or on demand in processes of their own.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import warm

MARKER = "# <- fault"
SECONDS = 240  # a case takes about ten; machines under load take longer
LINE = re.compile(r"step (\d+) (\S+) (\S+)(?: grad (\S+))?")
ANY_OF = ("code", "kind", "site", "phase", "op", "param", "cause", "confidence", "severity")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script and its answer."""

    id: str
    script: Path
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def level(self) -> str:
        """The level that is needed to see it."""
        return self.answer.get("level", "sentinel")

    @property
    def program(self) -> list[str]:
        """The launcher, if any, and the script with its arguments."""
        launcher, *flags = self.answer.get("launch", [""])
        own = Path(sys.executable).parent / launcher  # of the environment that runs the tests
        launch = [str(own) if own.is_file() else launcher, *flags] if launcher else []
        return [*launch, str(self.script), *self.answer.get("args", [])]

    @property
    def fault_line(self) -> int | None:
        """Line of the script (from 1) that carries the marker; None without one."""
        lines = self.script.read_text(encoding="utf-8").splitlines()
        return next((n for n, line in enumerate(lines, start=1) if MARKER in line), None)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run under Hypocenter left behind."""

    exit_code: int
    diagnosis: dict[str, Any] | None
    stdout: str
    stderr: str

    @property
    def status(self) -> str:
        """healthy, findings, cannot-tell or missing."""
        return "missing" if self.diagnosis is None else self.diagnosis["status"]

    @property
    def first(self) -> dict[str, Any] | None:
        """The first finding."""
        findings = self.diagnosis["findings"] if self.diagnosis else []
        return findings[0] if findings else None

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Findings of severity warning or error."""
        findings = self.diagnosis["findings"] if self.diagnosis else []
        return [f for f in findings if f["severity"] in ("error", "warning")]


def faults(folder: Path) -> list[Case]:
    """All cases of a folder that have an answer."""
    answers = {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}
    return [
        Case(id=path.stem, script=folder / answer.get("script", f"{path.stem}.py"), answer=answer)
        for path, answer in answers.items()
    ]


def near_misses(folder: Path) -> list[Case]:
    """Scripts without any fault: `n*_*.py`; those that say so in their first lines run on two ranks."""
    return [Case(id=path.stem, script=path, answer=_launch(path)) for path in sorted(folder.glob("n[0-9]*_*.py"))]


def _launch(path: Path) -> dict[str, Any]:
    is_two = "To be run by torchrun with two ranks" in path.read_text(encoding="utf-8")[:400]
    return {"launch": ["torchrun", "--standalone", "--nproc-per-node", "2"]} if is_two else {}


def environment() -> dict[str, str]:
    """One thread, no network, no options from outside, the package as it is in this checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    source = str(Path(__file__).resolve().parents[2] / "src")
    return kept | {
        "PYTHONPATH": os.pathsep.join([source, *filter(None, [kept.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1",
    }


def run_plain(case: Case, *flags: str) -> subprocess.CompletedProcess[str]:
    """The script alone, without Hypocenter."""
    command = [*([] if "launch" in case.answer else [sys.executable]), *case.program, *flags]
    return warm.run(command, timeout=SECONDS, env=environment())


def printed(text: str, key: str) -> dict[int, float]:
    """What a script printed by step: `step 3 loss 0.5 grad 1.5` is {3: 0.5} for loss and {3: 1.5} for grad."""
    found: dict[int, float] = {}
    for step, name, value, grad in LINE.findall(text):
        if name == key:
            found[int(step)] = float(value)
        elif name == "loss" and key == "grad":
            found[int(step)] = float(grad)
    return found


def is_finite(value: float) -> bool:
    """Neither NaN nor infinite."""
    return math.isfinite(value)


def run(
    case: Case, out: Path, *flags: str, level: str | None = None, audit: str = "never", is_started: bool = False
) -> Outcome:
    """The script under `hypocenter run`, recording into `out`. With `is_started` no imports are shared."""
    options = ("--out", str(out), "--level", level or case.level, "--audit", audit)
    command = [sys.executable, "-m", "hypocenter", "run", *options, *case.program, *flags]
    if is_started:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment(), cwd=out.parent, check=False
        )
    else:
        done = warm.run(command, timeout=SECONDS, env=environment(), cwd=out.parent)
    path = out / "diagnosis.json"
    diagnosis = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return Outcome(exit_code=done.returncode, diagnosis=diagnosis, stdout=done.stdout, stderr=done.stderr)


def mismatches(case: Case, outcome: Outcome) -> list[str]:
    """What the first finding gets wrong; empty when all is right."""
    first, answer = outcome.first, case.answer
    if first is None:
        return [f"no finding, status {outcome.status}"]
    wrong = [
        f"{key} is {first.get(key)!r}, not {answer[key]!r}"
        for key in ("step", "microbatch")
        if key in answer and first.get(key) != answer[key]
    ]
    wrong += [
        f"{key} is {first.get(key)!r}, none of {answer[key]!r}"
        for key in ANY_OF
        if key in answer and (first.get(key) or "") not in answer[key]
    ]
    if answer.get("is_alone") and len(outcome.alarms) > 1:
        wrong.append(f"also said: {[f.get('title') for f in outcome.alarms[1:]]}")
    if "samples" in answer and list(first.get("samples") or []) != answer["samples"]:
        wrong.append(f"samples are {first.get('samples')!r}, not {answer['samples']!r}")
    return wrong + _wrong_line(case, first) + _wrong_remedy(answer, first) + _missing_words(answer, first)


def _wrong_line(case: Case, first: dict[str, Any]) -> list[str]:
    if not case.answer.get("check_line", True):
        return []
    source = first.get("source") or {}
    file = case.answer.get("line_of", case.script.name)
    if Path(source.get("file") or "").name != file:
        return [f"source file is {source.get('file')!r}, not {file!r}"]
    if "line_text" in case.answer and case.answer["line_text"] not in (source.get("text") or ""):
        return [f"source text is {source.get('text')!r}, without {case.answer['line_text']!r}"]
    if file == case.script.name and source.get("line") != case.fault_line:
        return [f"source line is {source.get('line')!r}, not {case.fault_line}"]
    return []


def _wrong_remedy(answer: dict[str, Any], first: dict[str, Any]) -> list[str]:
    remedy = first.get("remedy") or {}
    wrong: list[str] = []
    if "remedy" in answer and remedy.get("action") not in answer["remedy"]:
        wrong.append(f"remedy is {remedy.get('action')!r}, none of {answer['remedy']!r}")
    if answer.get("verified") and not remedy.get("verified"):
        wrong.append("the remedy is not verified")
    if "limit" in answer and first.get("limit") != answer["limit"]:
        wrong.append(f"limit is {first.get('limit')!r}, not {answer['limit']!r}")
    if "limit" in answer and not (first.get("actual") or 0.0) > answer["limit"]:
        wrong.append(f"actual is {first.get('actual')!r}, not above {answer['limit']!r}")
    return wrong


def _missing_words(answer: dict[str, Any], first: dict[str, Any]) -> list[str]:
    said = json.dumps(first)
    return [f"does not mention {word!r}" for word in answer.get("mentions", []) if word not in said]
