"""Operators that are too large to be judged as a whole are judged by rows, within bounds of memory, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hypocenter.replay import effort
from hypocenter.replay.triage import expected
from hypocenter.replay.triage.expected import TooMuch
from hypocenter.replay.triage.ops import OpCheck, judge
from hypocenter.tap.op_context import OpContext

torch.set_num_threads(1)
aten = torch.ops.aten


def attention(n=512, heads=4):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, 32) for _ in range(3))
    return (q, k, v), aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v)


def judged(args, outputs):
    return judge(aten._scaled_dot_product_flash_attention_for_cpu.default, args, {}, outputs)


def test_of_a_large_attention_rows_that_are_not_finite_are_judged_first(monkeypatch):
    args, (out, lse) = attention()
    monkeypatch.setattr(expected, "MOST_PRODUCTS", 1 << 22)
    assert judged(args, (out, lse)) == []

    out[0, 3, 77, 5] = torch.nan
    (wrong,) = judged(args, (out, lse))

    assert wrong.index == (0, 3, 77, 5)
    assert wrong.n_wrong == 1
    assert wrong.n < out.numel() / 10


def test_a_fault_of_a_whole_head_is_found_in_some_of_its_rows(monkeypatch):
    args, (out, lse) = attention()
    monkeypatch.setattr(expected, "MOST_PRODUCTS", 1 << 22)
    out[0, 2] *= 1.01

    (wrong,) = judged(args, (out, lse))

    assert wrong.index[:2] == (0, 2)


_PROGRAM = """
import resource, torch
from hypocenter.replay.triage.ops import judge
torch.set_num_threads(1)
q, k, v = (torch.randn(1, 8, 8192, 32).bfloat16() for _ in range(3))
func = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
out, lse = func(q, k, v, 0.0, True)
judge(func, tuple(t[:, :, :64] for t in (q, k, v)), {}, func(*(t[:, :, :64] for t in (q, k, v))))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
assert judge(func, (q, k, v, 0.0, True), {}, (out, lse)) == []
out[0, 7, 8000, 3] = 1e4
out[0, 7, 8001, 3] = float("inf")
(wrong,) = judge(func, (q, k, v, 0.0, True), {}, (out, lse))
assert wrong.index == (0, 7, 8001, 3), wrong
"""


@pytest.mark.night  # by day rows of a small attention are judged, 7 CPU seconds less
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_attention_over_8192_tokens_is_judged_in_a_gibibyte():
    """Its scores are 4 GiB in float64."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, timeout=200
    )

    assert done.returncode == 0, done.stderr[-2000:]


def test_what_would_take_longer_than_there_is_time_for_is_not_judged_and_counted(monkeypatch):
    monkeypatch.setattr(effort, "pace", lambda device, dtype: 4e6)
    x, w = torch.randn(4, 8, 32, 32), torch.randn(8, 8, 3, 3)
    args = (x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    with pytest.raises(TooMuch):
        judge(aten.convolution.default, args, {}, (aten.convolution.default(*args),), seconds=0.5)

    with OpCheck(OpContext(lambda module: None), seconds=0.5) as check:
        torch.nn.functional.conv2d(x, w, padding=1).sum()

    assert check.report.n_late == 1
    assert check.report.n_checked == 1
