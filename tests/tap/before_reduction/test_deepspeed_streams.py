"""Gradients in ZeRO's buckets are read in the order of the streams that fill them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / name) for name in ("devices", "processes")]

import npu_backend  # noqa: E402
import warm  # noqa: E402
from installed import skip_without  # noqa: E402

skip_without("deepspeed")
PROGRAM = Path(__file__).with_name("buckets_on_streams.py")


@pytest.mark.parametrize("stage", ["3", "2"])
def test_no_bucket_is_read_while_another_stream_fills_it(stage):
    if npu_backend.library() is None:
        pytest.skip("no C++ compiler, or torch without its headers")
    source = str(PROGRAM.parents[3] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = warm.run([sys.executable, str(PROGRAM), stage], env=environment, timeout=120)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[]", "[1.0, 2.0, 3.0]"]
