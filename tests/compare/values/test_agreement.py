"""On recordings that hold both, sketches and values come to the same verdicts."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.compare.agreement import agreement
from hypocenter.record.reader import open_run

sys.path.insert(0, str(Path(__file__).parent))
from test_depth import record


def test_a_fault_and_no_fault(tmp_path):
    good = record(tmp_path / "good", sketch=True)
    again = record(tmp_path / "again", sketch=True)
    bad = record(tmp_path / "bad", sketch=True, scale=1.01)

    same, other = (agreement(open_run(good), open_run(run)) for run in (again, bad))

    assert same.statuses == ("same", "same")
    assert other.statuses == ("diverged", "diverged")
    assert other.same_place
    assert (other.by_sketches.depth, other.by_values.depth) == ("sketch", "tensor")
    assert other.n_rows > 30
    assert other.n_rows_agree >= 0.9 * other.n_rows
