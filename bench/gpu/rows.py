"""A line of the table, and how checks run programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("train.py")
TIMEOUT_S = 600.0
INTERNAL = "internal error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was looked at, what was seen and what was expected."""

    what: str
    seen: str
    expected: str = ""
    is_ok: bool | None = None  # None: a measurement, or it could not be run


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A training that ended."""

    code: int
    out: str
    err: str

    @property
    def numbers(self) -> list[str]:
        """Losses and weights of each rank, to the bit."""
        return sorted(line for line in self.out.splitlines() if line.startswith(("loss ", "weights ")))

    def told(self, name: str) -> float | None:
        """A number that the program measured: the last line that begins with this word."""
        found = [line.split()[1] for line in self.out.splitlines() if line.startswith(f"{name} ")]
        return float(found[-1]) if found else None

    @property
    def why(self) -> str:
        """The last line of a training that failed."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1][:160] if lines else f"exit code {self.code}"


def train(*options: str, ranks: int = 1) -> Done:
    """Without Hypocenter."""
    return _run([*_python(ranks), str(PROGRAM), *options])


def watched(out: Path, *options: str, watch: Sequence[str] = (), ranks: int = 1) -> Done:
    """The same under `hypocenter run`."""
    ours = [sys.executable, "-m", "hypocenter", "run", "--out", str(out), *watch]
    return _run([*ours, *(_python(ranks) if ranks > 1 else []), str(PROGRAM), *options])


def findings(out: Path) -> list[dict[str, Any]]:
    """What `hypocenter check` finds in a recording."""
    done = _run([sys.executable, "-m", "hypocenter", "check", str(out), "--json"])
    return json.loads(done.out)["findings"] if done.out.startswith("{") else [{"code": "none", "title": done.why}]


def identity(what: str, out: Path, *options: str, watch: Sequence[str] = (), ranks: int = 1) -> list[Row]:
    """Whether a healthy training gives the same bits when it is watched, and nothing is found.

    What does not repeat itself to the bit (atomic sums in compiled code) can show that only as far as it does.
    """
    alone, again = train(*options, ranks=ranks), train(*options, ranks=ranks)
    if alone.code:
        return [Row(what=what, seen=f"not run: {alone.why}")]
    seen = watched(out, *options, watch=watch, ranks=ranks)
    if seen.code:
        return [Row(what=what, seen=seen.why, expected="as without Hypocenter", is_ok=False)]
    n_same, n_own = _n_equal(alone, seen), _n_equal(alone, again)
    is_same = bool(alone.numbers) and n_same >= n_own
    does_repeat = n_own == len(alone.numbers)
    expected = "all" if does_repeat else f"{n_own}, as many as it repeats"
    said = [line for line in seen.err.splitlines() if INTERNAL in line]
    told = said or sorted({each["code"] for each in findings(out) if each["severity"] != "note"})
    bits = f"{n_same} of {len(alone.numbers)} equal"
    is_ok = True if is_same else False if does_repeat else None
    return [
        Row(what=f"{what}: bits", seen=bits, expected=expected, is_ok=is_ok),
        Row(what=f"{what}: findings", seen=" ".join(told) or "none", expected="none", is_ok=not told),
    ]


def _n_equal(one: Done, other: Done) -> int:
    return sum(a == b for a, b in zip(one.numbers, other.numbers, strict=False))


def _python(ranks: int) -> list[str]:
    if ranks == 1:
        return [sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def _run(command: Sequence[str]) -> Done:
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        return Done(code=-1, out="", err=f"not over after {TIMEOUT_S:.0f} s")
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)
