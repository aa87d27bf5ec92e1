"""Recordings that are streamed: whole and cut, sealed or not, the answer is the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.compare.long_runs import write_run  # noqa: E402
from hypocenter.compare.engine import compare_runs  # noqa: E402
from hypocenter.record.reader import open_run  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [True, False])
def test_a_difference_late_in_a_long_run_is_found(tmp_path, sealed):
    baseline = write_run(tmp_path / "a", n_sites=90, n_steps=300, sealed=sealed)
    candidate = write_run(tmp_path / "b", n_sites=90, n_steps=300, sealed=sealed, drift_from=211)

    found = compare_runs(open_run(baseline), open_run(candidate))

    assert found.status == "diverged"
    assert found.first.step == 211
    assert (found.n_rows, found.n_steps, found.depth) == (27_000, 300, "summary")
    assert {row.step for row in found.rows if row.verdict == "differs"} <= set(range(211, 300))


def test_rows_of_one_step_may_come_in_any_file_order(tmp_path):
    """A recording whose steps do not rise is read through a shelf."""
    from hypocenter.nouns import Reading, StepRecord, Summary
    from hypocenter.record.writer import Writer

    runs = []
    for name, steps in (("a", [0, 1, 2, 3]), ("b", [2, 3, 0, 1])):
        writer = Writer(tmp_path / name, rank=0, warn=lambda text: None)
        for step in steps:
            summary = Summary(n=4, n_hist=4, min=-1.0, max=1.0, absmax=1.0, sum=float(step), sumsq=2.0 + step)
            row = Reading(
                step=step, microbatch=0, phase="forward", site="a", port="out[0]", order=0, dtype="float32",
                shape=(4,), summary=summary,
            )  # fmt: skip
            writer.write([row], StepRecord(step=step, loss=float(step)))
        writer.close()
        runs.append(open_run(tmp_path / name))

    found = compare_runs(*runs)

    assert (found.status, found.n_steps) == ("same", 4)
