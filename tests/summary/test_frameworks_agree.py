"""The same numbers in torch, NumPy and MindSpore (an environment of its own: MINDSPORE_PYTHON): the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hypocenter
from hypocenter.nouns import Summary, replace
from hypocenter.summary.reducers import numpy as numpy_reducer
from hypocenter.summary.reducers.numpy_many import NumpyReducer
from hypocenter.summary.reducers.torch import TorchReducer, summarize

sys.path.insert(0, str(Path(__file__).parents[1] / "mindspore"))
from arrays import EDGES, INTEGERS, SHAPES, bfloat16_bits, on_a_grid  # isort: skip

PROGRAM = Path(__file__).parent / "programs" / "summaries_by_mindspore.py"
PYTHON = os.environ.get("MINDSPORE_PYTHON", sys.executable if find_spec("mindspore") else "")
needs_mindspore = pytest.mark.skipif(not PYTHON, reason="no MindSpore here, and MINDSPORE_PYTHON names none")
_COMPLEX_ORDER = "complex"  # its sample depends on where a framework puts the imaginary parts

torch.set_num_threads(1)


def held() -> dict[str, np.ndarray]:
    """Every format in every shape, with and without numbers that are not finite; and what lies at the edges."""
    found = {
        f"{dtype} {shape} {'bad' if bad else 'good'}": on_a_grid(shape, dtype, seed=11, bad=bad)
        for dtype in ("float32", "float64", "float16", "complex64", *INTEGERS)
        for shape in (SHAPES if dtype in ("float32", "float16") else SHAPES[1:-1:2])
        for bad in ((False, True) if dtype.startswith("float") else (False,))
    }
    found |= {f"bfloat16 {name}": bfloat16_bits(a) for name, a in found.items() if name.startswith("float32")}
    return found | {f"{dtype} edges": np.array(EDGES[dtype], dtype)[:, None] for dtype in ("float16", "float32")}


def as_torch(name: str, array: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array))
    return tensor.view(torch.bfloat16) if name.startswith("bfloat16") else tensor


def as_numpy(name: str, array: np.ndarray) -> np.ndarray:
    return (array.astype(np.uint32) << 16).view(np.float32) if name.startswith("bfloat16") else array


def without_sums(summary: Summary) -> Summary:
    return replace(summary, sum=0.0, sumsq=0.0, sketch=None)


@pytest.fixture(scope="module")
def by_mindspore(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Summary]]:
    path = tmp_path_factory.mktemp("arrays") / "held.npz"
    np.savez(path, **held())
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HYPOCENTER"))}
    env |= {"PYTHONPATH": str(Path(hypocenter.__file__).parents[1]), "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    done = subprocess.run(
        [PYTHON, str(PROGRAM), str(path)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return {name: [_summary(each) for each in summaries] for name, summaries in told.items()}


def _summary(told: dict[str, Any]) -> Summary:
    told["hist"] = tuple(told["hist"])
    told["sketch"] = None if told["sketch"] is None else tuple(told["sketch"])
    return Summary(**told)


@needs_mindspore
def test_full_summaries_and_sketches_are_the_same_to_the_bit(by_mindspore: dict[str, list[Summary]]) -> None:
    for name, array in held().items():
        from_numpy = numpy_reducer.summarize(as_numpy(name, array), sketch=True)
        from_torch = summarize(as_torch(name, array), sketch=True)

        is_exact = "edges" not in name  # sums of 3.4e38 and 1e-45 depend on their order in float32
        told = by_mindspore[name][0]
        assert told == from_numpy if is_exact else without_sums(told) == without_sums(from_numpy), name
        assert told == from_torch if is_exact else without_sums(told) == without_sums(from_torch), name


@needs_mindspore
def test_samples_are_the_same_elements(by_mindspore: dict[str, list[Summary]]) -> None:
    in_torch, in_numpy = TorchReducer(sketch=True), NumpyReducer(sketch=True)
    arrays = {name: array for name, array in held().items() if _COMPLEX_ORDER not in name}
    for name, array in arrays.items():
        in_torch.add(as_torch(name, array))
        in_numpy.add(as_numpy(name, array))

    for name, from_torch, from_numpy in zip(arrays, in_torch.drain(), in_numpy.drain(), strict=True):
        told = by_mindspore[name][1]
        assert told == from_numpy or "edges" in name, name
        assert without_sums(told) == without_sums(from_torch), name
        assert told.sumsq == pytest.approx(from_torch.sumsq, rel=1e-4), name
        assert told.sketch == from_torch.sketch or "edges" in name, name


@needs_mindspore
def test_on_an_accelerator_torch_and_mindspore_look_at_the_same(by_mindspore: dict[str, list[Summary]]) -> None:
    reducer = TorchReducer(sketch=True, defer_cpu=True)
    arrays = {name: a for name, a in held().items() if name.startswith(("float32", "float16", "bfloat16"))}
    for name, array in arrays.items():
        reducer.add(as_torch(name, array))

    for name, from_torch in zip(arrays, reducer.drain(), strict=True):
        told = by_mindspore[name][2]
        assert without_sums(told) == without_sums(from_torch), name
        assert "edges" in name or told.sketch == from_torch.sketch, name


def test_many_arrays_come_out_as_one_by_one() -> None:
    arrays = [as_numpy(name, array) for name, array in held().items()]
    reducer = NumpyReducer(histogram="full", sketch=True)

    tickets = [reducer.add(array) for array in arrays]

    assert tickets == list(range(len(arrays)))
    assert reducer.drain() == [numpy_reducer.summarize(array, sketch=True) for array in arrays]
