"""Summaries by Triton's kernels: equal to those by torch's operators and to the CPU's; syncs, streams, speed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.gpu.rows import Row, _run

NEEDS = ("cuda",)


def run(device: str, folder: Path) -> list[Row]:
    """In a process of its own: a kernel that is wrong may break the device."""
    done = _run([sys.executable, "-m", "bench.gpu.summaries", device])
    rows = [Row(**json.loads(line)) for line in done.out.splitlines() if line.startswith("{")]
    if done.code or not rows:
        rows.append(Row(what="the comparison", seen=done.why, expected="a result", is_ok=False))
    return rows
