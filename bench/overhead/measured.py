"""The cells measured so far, in bench/overhead/measured.json: the table takes an hour and need not be one run."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.overhead.pairs import ROOT, Cost
from bench.overhead.tools import TOOLS
from bench.overhead.workloads import NAMES, SCALED

Costs = dict[str, dict[str, Cost]]  # by workload, then by tool

FILE = ROOT / "bench" / "overhead" / "measured.json"


def keep(workload: str, tool: str, cost: Cost) -> None:
    """Put one cell in the file. Cells from another machine or other versions are dropped: they do not compare."""
    cells = _cells()
    cells.setdefault(workload, {})[tool] = asdict(cost)
    FILE.write_text(json.dumps({"machine": machine(), "cells": cells}, indent=1) + "\n", encoding="utf-8")


def kept() -> Costs:
    """All cells of this machine, in the order of the table."""
    cells = _cells()
    return {
        workload: {
            tool: Cost(**cells[workload][tool] | {"ratios": tuple(cells[workload][tool]["ratios"])})
            for tool in TOOLS
            if tool in cells[workload]
        }
        for workload in (*NAMES, *SCALED)
        if workload in cells
    }


def machine() -> str:
    """The processor, the system and the versions that the numbers depend on."""
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "hypocenter"))
    where = f"{_processor()}, {os.cpu_count()} cores, {platform.system()}"
    return f"{where},\nPython {platform.python_version()}, {packages}"


def _cells() -> dict[str, dict[str, dict[str, object]]]:
    if not FILE.exists():
        return {}
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return stored["cells"] if stored["machine"] == machine() else {}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from the source tree
        from hypocenter import __version__

        return __version__ if package == "hypocenter" else "unknown"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
