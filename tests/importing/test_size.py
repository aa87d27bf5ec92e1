"""A large dump is imported in the memory that `python -m bench.importing` allows. It tells the time, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.importing.__main__ import MIB
from bench.importing.dump import write_dump

ROOT = Path(__file__).resolve().parents[2]
# VmHWM is of the program alone; ru_maxrss keeps that of the process which started it.
PROGRAM = """
import json, sys
from hypocenter.cli import main
code = main(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"code": code or 0, "mib": int(peak.split()[1]) / 1024}))
"""


@pytest.mark.night
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process")
def test_a_hundred_thousand_tensors_take_a_gibibyte(tmp_path: Path) -> None:
    n = write_dump(tmp_path / "dump", 100_000)
    words = ("import", str(tmp_path / "dump"), "-o", str(tmp_path / "run"))
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=env, capture_output=True, text=True, check=True, timeout=300
    )

    used = json.loads(done.stdout.splitlines()[-1])
    assert n >= 100_000
    assert used["code"] == 0
    assert used["mib"] < MIB
