"""msprobe's `tensor` dump and `compare`, driven as its manual says: a folder for each step, a table for each pair.

Needs a Python that has torch and mindstudio-probe (26.2 was used); its folder holds the command `msprobe` too.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

SECONDS = 900.0  # for one command


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What msprobe says of a step."""

    step: int
    n_rows: int
    results: dict[str, int]  # "pass", "warning", "error", "unmatched", ... and how many rows
    first: str  # the first row that is not "pass", in execution order; "" if all pass
    message: str


class MsprobeFailed(Exception):
    """A command ended without a table; holds its last line."""


def compare(python: str, golden: Path, target: Path) -> tuple[list[Table], float]:
    """Compare two dumps step by step: the tables, and seconds for all steps.

    Raises:
        MsprobeFailed: no table was written.
    """
    began = time.perf_counter()
    steps = sorted(int(folder.name.removeprefix("step")) for folder in golden.glob("step*"))
    tables = [_step(python, golden / f"step{step}", target / f"step{step}", step) for step in steps]
    return tables, time.perf_counter() - began


def _step(python: str, golden: Path, target: Path, step: int) -> Table:
    pair = [next(iter(folder.glob("*/dump.json")), None) for folder in (golden, target)]
    if pair[0] is None or pair[1] is None:
        raise MsprobeFailed(f"no dump.json below {golden} or {target}")
    with TemporaryDirectory(prefix="msprobe-") as out:
        words = [str(Path(python).parent / "msprobe"), "compare", "-tp", str(pair[1]), "-gp", str(pair[0]), "-o", out]
        environment = os.environ | {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False)
        found = next(Path(out).glob("*.csv"), None)
        if found is None:
            said = (done.stdout + done.stderr).strip().splitlines()
            raise MsprobeFailed(said[-1] if said else "msprobe compare said nothing")
        return _read(found, step)


def _read(path: Path, step: int) -> Table:
    csv.field_size_limit(sys.maxsize)  # a column holds stacks
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    first = next((row for row in rows if row.get("Result") != "pass"), None)
    return Table(
        step=step, n_rows=len(rows), results=dict(Counter(str(row.get("Result")) for row in rows)),
        first=str(first["NPU Name"]) if first else "", message=" ".join(str(first["Err_message"]).split())[:120]
        if first
        else "",
    )  # fmt: skip
