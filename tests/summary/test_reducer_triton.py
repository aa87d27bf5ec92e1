"""The reducer of Triton's kernels: interpreted and compiled, in a Python that has Triton; and without Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from hypocenter.summary.reducers import torch_triton
from hypocenter.summary.reducers.torch import TorchReducer, summarize

HERE = Path(__file__).parent
PYTHON = os.environ.get("TRITON_PYTHON", sys.executable if find_spec("triton") else "")
needs_triton = pytest.mark.skipif(not PYTHON, reason="no Triton here, and TRITON_PYTHON names none")


def run(*arguments: str, **more: str) -> str:
    roots = [str(HERE.parents[1] / "src"), str(HERE.parents[1])]
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "HYPOCENTER", "PYTEST"))
    }
    env |= {"PYTHONPATH": os.pathsep.join([*roots, env.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run([PYTHON, *arguments], env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


@needs_triton
@pytest.mark.slow
def test_the_kernels_agree_with_the_reference_in_tritons_interpreter(pytestconfig: pytest.Config) -> None:
    share = ["--by-day"] if pytestconfig.getoption("--by-day") else []
    told = run("-m", "pytest", str(HERE / "interpreted"), *share, "-q", "-p", "no:cacheprovider", TRITON_INTERPRET="1")

    assert " passed" in told.splitlines()[-1]
    assert "skipped" not in told.splitlines()[-1]


@needs_triton
@pytest.mark.night
def test_the_kernels_compile_for_devices_and_are_exact_there(tmp_path: Path) -> None:
    """Nothing flushes subnormals, no float is added atomically, nothing spills, and loads are wide."""
    told = run(str(HERE / "programs" / "compile_kernels.py"), TRITON_CACHE_DIR=str(tmp_path)).splitlines()

    assert [line for line in told if not line.endswith(" ok")] == []
    assert len(told) == 12


@needs_triton
@pytest.mark.night
def test_what_is_checked_on_a_gpu_is_as_expected_in_the_interpreter() -> None:
    rows = [json.loads(line) for line in run("-m", "bench.gpu.summaries", "cpu", TRITON_INTERPRET="1").splitlines()]

    assert {row["what"] for row in rows if row["is_ok"]} == {
        "all fields, and the CPU's", "a sample's, and torch's operators'", "failures of Triton",
    }  # fmt: skip
    assert [row for row in rows if row["is_ok"] is False] == []


class Broken:
    """A Triton without a compiler."""

    IS_INTERPRETED = True
    n_asked = 0

    @property
    def look(self):
        self.n_asked += 1
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")


@pytest.fixture
def broken(monkeypatch) -> Broken:
    kernels = Broken()
    monkeypatch.setattr(torch_triton, "_kernels", lambda: kernels)
    monkeypatch.setattr(torch_triton, "_why_off", [])
    monkeypatch.setattr(torch_triton, "_unsaid", [])
    return kernels


@pytest.mark.parametrize("histogram", ["sample", "full"])
def test_where_triton_fails_torchs_operators_do_it_and_it_is_said_once(broken: Broken, same, histogram) -> None:
    said: list[str] = []
    silent, reducer = TorchReducer(histogram, defer_cpu=True), TorchReducer(histogram, defer_cpu=True, warn=said.append)
    tensors = [torch.arange(400.0), torch.arange(300).to(torch.int16), torch.tensor([1.0, torch.nan])]

    for each in (silent, reducer, reducer):
        for t in tensors:
            each.add(t)
        for summary, t in zip(each.drain(), tensors, strict=True):
            same(summary, summarize(t), rel=1e-5)

    assert broken.n_asked == 1
    assert said == [
        "summaries are made without Triton, which fails here (RuntimeError: Failed to find C compiler. Please specify "
        "via CC environment variable.)"
    ]


def test_memory_that_runs_out_is_no_failure_of_triton(monkeypatch, broken: Broken) -> None:
    def launched(row, *, is_full):
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(torch_triton, "launched", launched)
    reducer = TorchReducer(defer_cpu=True)

    reducer.add(torch.ones(4))

    assert reducer.drain()[0].n == 4
    assert torch_triton._why_off == []


def test_a_cpu_never_imports_triton(monkeypatch) -> None:
    monkeypatch.setattr(torch_triton, "_kernels", lambda: pytest.fail("asked for Triton"))
    reducer = TorchReducer()

    reducer.add(torch.randn(5000))

    assert reducer.drain()[0].n == 5000
