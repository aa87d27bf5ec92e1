"""A large dump is imported in the time and memory that `python -m bench.importing` allows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.importing.__main__ import MIB, SECONDS
from bench.importing.dump import write_dump


@pytest.mark.slow
def test_a_hundred_thousand_tensors_take_ten_seconds_and_a_gibibyte(tmp_path: Path) -> None:
    n = write_dump(tmp_path / "dump", 100_000)
    command = [sys.executable, "-m", "hypocenter", "import", str(tmp_path / "dump"), "-o", str(tmp_path / "run")]

    child = os.posix_spawn(sys.executable, command, os.environ)
    _, status, used = os.wait4(child, 0)

    assert (n >= 100_000, status) == (True, 0)
    assert used.ru_utime + used.ru_stime < SECONDS  # of a processor: what else the machine does is not counted
    assert used.ru_maxrss / 1024 < MIB
