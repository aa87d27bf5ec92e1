"""One command in a process of its own: how long it took, and its peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CHILD = """
import json, resource, sys
from hypocenter.cli import main
code = main(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_SELF)
cost = {"peak_mib": used.ru_maxrss / 1024, "cpu_s": used.ru_utime + used.ru_stime}
children = resource.getrusage(resource.RUSAGE_CHILDREN)  # they have ended: of all together
cost["workers_cpu_s"] = children.ru_utime + children.ru_stime
with open(sys.argv[1], "w") as file:
    json.dump({"code": code, **cost}, file)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one command cost and printed."""

    words: str
    code: int
    seconds: float
    cpu_s: float  # of all its threads
    workers_cpu_s: float  # of the processes that worked for it
    peak_mib: float
    stdout: str


def measured(*words: str) -> Measured:
    """Run `hypocenter WORDS` in a child process."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(answer), *words], stdout=subprocess.PIPE, text=True, env=environment,
            check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        found = json.loads(answer.read_text())
    return Measured(
        words=" ".join(words[:1]), code=found["code"], seconds=seconds, cpu_s=found["cpu_s"],
        workers_cpu_s=found["workers_cpu_s"], peak_mib=found["peak_mib"], stdout=done.stdout,
    )  # fmt: skip


def total(costs: Sequence[Measured]) -> tuple[float, float]:
    """Seconds together, and the highest peak in MiB: the commands run one after the other."""
    return sum(cost.seconds for cost in costs), max(cost.peak_mib for cost in costs)
