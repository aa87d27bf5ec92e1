"""Dumps that msprobe makes at this moment give the same numbers as its own files.

Needs a Python with `mindstudio-probe` and torch: the one that runs the tests, or MSPROBE_PYTHON.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hypocenter.compare.comparison import Spot
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.diagnose.diagnosis import diagnose

sys.path.insert(0, str(Path(__file__).parent))
from dumps import imported, numbers_of, sums_of, sums_told, told  # isort: skip

HERE = Path(__file__).parent
PYTHON = os.environ.get("MSPROBE_PYTHON", "")
pytestmark = [
    pytest.mark.night,  # dumps that msprobe made before are read in CI (test_msprobe.py)
    pytest.mark.skipif(
        not PYTHON and importlib.util.find_spec("msprobe") is None, reason="there is no msprobe: MSPROBE_PYTHON"
    ),
]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fresh")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [PYTHON or sys.executable, HERE / "fresh_dumps.py", out], env=env, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.mark.parametrize("name", ["L0", "L1", "mix", "L0_tensor", "L1_tensor", "two_ranks"])
def test_every_tensor_has_the_numbers_of_the_tools_own_file(name: str, fresh: Path, tmp_path: Path) -> None:
    run = imported(fresh / name, tmp_path / "run")

    assert numbers_of(run) == told(fresh / name)
    assert sums_of(run) == sums_told(fresh / name)
    assert run.ranks == ([0, 1] if name == "two_ranks" else [0])
    assert diagnose(run).status == "healthy"
    assert not run.run.warnings


def test_values_are_those_of_torchs_own_reader(fresh: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (file,) = (fresh / "L0_tensor" / "step1").rglob("Module.norm.LayerNorm.forward.0.output.0.pt")
    values = RecordedValues(imported(fresh / "L0_tensor", tmp_path / "run"))

    ours = values.find(Spot(phase="forward", site="norm", port="out[0]"), 1, 0)

    assert ours is not None
    np.testing.assert_array_equal(ours.values(), torch.load(file, weights_only=True).double().numpy())
