"""importing.kinds.mindspore_dump: dumps that MindSpore makes now, in an environment of its own (MINDSPORE_PYTHON)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hypocenter.compare.engine import compare_runs
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import RecordedRun

sys.path.insert(0, str(Path(__file__).parent))
from mindspore_trees import imported, reading_of  # isort: skip

PROGRAM = Path(__file__).parent / "programs" / "dumped_by_mindspore.py"
PYTHON = os.environ.get("MINDSPORE_PYTHON", sys.executable if find_spec("mindspore") else "")
pytestmark = [
    pytest.mark.night,  # dumps that MindSpore made before are read in CI (test_mindspore_dump.py)
    pytest.mark.skipif(not PYTHON, reason="no MindSpore here, and MINDSPORE_PYTHON names none"),
]

_WIDE_SUM = 1e-5  # relative, of sums of some hundred float32 numbers


def dumped(folder: Path, kind: str) -> tuple[Path, list[float]]:
    """The dump of the program, and the losses that it printed."""
    common = {
        "op_debug_mode": 0, "dump_mode": 0, "path": str(folder / "dump"), "net_name": "Net", "iteration": "all",
        "saved_data": "tensor", "input_output": 0, "kernels": [], "support_device": [0],
    }  # fmt: skip
    folder.mkdir()
    config = folder / "config.json"
    config.write_text(
        json.dumps({"common_dump_settings": common, "e2e_dump_settings": {"enable": True, "trans_flag": True}})
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HYPOCENTER"))}
    env |= {"MINDSPORE_DUMP_CONFIG": str(config), "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    done = subprocess.run(
        [PYTHON, str(PROGRAM), kind], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "dump", [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss ")]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[RecordedRun, list[float]]:
    folder = tmp_path_factory.mktemp("healthy")
    dump, losses = dumped(folder / "made", "healthy")
    return imported(dump, folder / "run", kind=None), losses


def test_a_fresh_dump_tells_loss_updates_and_every_operator(healthy: tuple[RecordedRun, list[float]]) -> None:
    run, losses = healthy

    notes = " ".join(run.run.imported.notes)  # type: ignore[union-attr]
    assert "values do not flow" not in notes  # every file is paired with its operator of the graph
    assert [record.loss for _, record in run.step_records()][:2] == pytest.approx(losses)
    assert [record.lr for _, record in run.step_records()][:2] == pytest.approx([1e-2, 1e-2])
    weights = {r.site for r in run.readings(phase="param", steps=[0])}
    assert weights == {r.site for r in run.readings(phase="grad", steps=[0])}
    assert len(weights) == 2 * 6 + 2
    for name in weights:
        before, after = (reading_of(run, "param", name, "value", step=step).summary for step in (0, 1))
        first = reading_of(run, "optimizer", name, "exp_avg", step=1).summary  # (1 - beta1) times the gradient
        gradient = reading_of(run, "grad", name, "grad").summary
        assert first.sumsq == pytest.approx(0.01 * gradient.sumsq, rel=_WIDE_SUM)
        assert before.sketch != after.sketch
    assert diagnose(run).status == "healthy"


def test_a_cell_with_another_eps_is_where_two_dumps_part(
    healthy: tuple[RecordedRun, list[float]], tmp_path: Path
) -> None:
    dump, _ = dumped(tmp_path / "made", "eps")

    found = compare_runs(healthy[0], imported(dump, tmp_path / "run"))

    assert found.status == "diverged"
    assert found.first is not None
    assert found.first.site in ("layers.1.ln", "layers.1.ln.LayerNorm")


@pytest.mark.parametrize(("kind", "cause", "op"), [("half", "format-overflow", "Mul"), ("log", "log-of-zero", "Log")])
def test_where_it_went_wrong_is_named(tmp_path: Path, kind: str, cause: str, op: str) -> None:
    dump, losses = dumped(tmp_path / "made", kind)

    found = next(f for f in diagnose(imported(dump, tmp_path / "run")).findings if f.code == "HC104")

    assert not all(abs(loss) < 1e9 for loss in losses)
    assert (found.cause, found.op) == (cause, f"Graph.{op}")
    assert found.source is not None
    assert found.source.file == str(PROGRAM)
