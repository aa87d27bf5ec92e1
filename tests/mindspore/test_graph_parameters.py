"""GRAPH mode at level sentinel: of a step only its loss comes out, but the parameters lie open between two calls."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from started import started

from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Diagnosis
from hypocenter.record.reader import open_run

PROGRAM = Path(__file__).parent / "programs" / "graph_gate.py"


def recorded(folder: Path, *words: str) -> tuple[Diagnosis, str, str]:
    """What is said of the run, and the losses of the program alone and recorded."""
    alone = started(str(PROGRAM), *words, folder=folder)
    done = started("-m", "hypocenter", "run", "--out", "run", str(PROGRAM), *words, folder=folder)
    assert (alone.returncode, done.returncode) == (0, 0), done.stderr[-2000:]
    return diagnose(open_run(folder / "run")), alone.stdout, done.stdout


def test_a_parameter_that_became_nan_behind_a_finite_loss_is_a_finding(tmp_path: Path) -> None:
    found, alone, done = recorded(tmp_path, "bad")

    (finding,) = found.findings
    assert (finding.code, finding.severity, finding.param, finding.step) == ("HC103", "error", "gate", 0)
    assert "nan" not in done
    assert alone == done


def test_finite_parameters_make_a_finite_loss_healthy(tmp_path: Path) -> None:
    found, alone, done = recorded(tmp_path)

    assert (found.status, found.findings) == ("healthy", ())
    assert alone == done
