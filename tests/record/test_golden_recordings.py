"""Recordings of every past format, written by the version that introduced it and never again, are still read.

`python tests/record/test_golden_recordings.py` wrote `tests/golden/format-<FORMAT>`; it refuses to write over one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hypocenter.nouns import Reading, Source, StepRecord, Summary
from hypocenter.record.layout import FORMAT
from hypocenter.record.reader import open_run

GOLDEN = Path(__file__).parent.parent / "golden"
SOURCE = Source(file="model.py", line=310, text="hidden = gate * up", function="forward")


def readings(rank: int) -> list[Reading]:
    """What each golden recording holds of a rank: a healthy and a broken step."""
    healthy = Summary(
        n=8, n_hist=8, n_zero=1, min=-1.5, max=2.0, absmin=0.25, absmax=2.0, sum=1.25 + rank, sumsq=9.0,
        hist_first=-2, hist=(1, 2, 3, 1), sketch=(0.5, -0.25),
    )  # fmt: skip
    broken = Summary(n=8, n_nan=2, n_posinf=1, n_hist=8)
    first = Reading(
        step=0, microbatch=1, phase="forward", site="encoder.block.0.wo", port="out[0]", order=3, call=1,
        dtype="float16", shape=(2, 4), summary=healthy, module="Linear", names=("encoder.block.0.wo", "shared"),
        op="aten.mul.Tensor", source=SOURCE, recompute=True,
    )  # fmt: skip
    second = Reading(
        step=1, microbatch=0, phase="grad", site="größe", port="grad", order=0, dtype="bfloat16", summary=broken,
        replay=True, literal_inf=True,
    )  # fmt: skip
    return [first, second]


STEPS = [
    StepRecord(
        step=0, n_microbatches=2, loss=2.5, grad_norm=1.0, loss_scale=65536.0, lr=1e-4, step_ms=10.5, tap_ms=0.5
    ),
    StepRecord(step=1, loss=float("inf"), skipped=True, n_bad_grads=1, finding="step-000001-nonfinite-grad"),
]


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_every_past_format_is_read(number: int) -> None:
    run = open_run(GOLDEN / f"format-{number}")

    assert run.problems == []
    assert (run.run.format, run.run.command, run.run.status) == (number, ("python", "train.py"), "finished")
    assert run.ranks == [0, 1]
    for rank in run.ranks:
        assert list(run.readings(rank=rank)) == readings(rank)
    assert run.step_records() == [(rank, step) for rank in run.ranks for step in STEPS]
    assert [path.parent.name for _, path in run.evidence_files()] == ["step-000001-nonfinite-grad"]


def test_a_golden_recording_holds_both_kinds_of_file() -> None:
    suffixes = {rank: {p.suffix for p in (GOLDEN / f"format-{FORMAT}").glob(f"rank-{rank:05d}/*.*")} for rank in (0, 1)}

    assert suffixes == {0: {".parquet"}, 1: {".arrow", ".msgpack"}}


def write_golden() -> None:
    """Write the recording of this format: rank 0 sealed, rank 1 as a killed process leaves it."""
    from hypocenter.record import writer as recording
    from hypocenter.record.layout import bundle_directory, new_run_directory
    from hypocenter.record.run_file import finish_run, start_run

    os.chdir("/")  # a recording names the folder that it was started in
    recording.host_name = lambda: "golden"
    directory = new_run_directory(str(GOLDEN / f"format-{FORMAT}"), force=False)
    start_run(directory, ["python", "train.py"], {"level": "ops"}, 2, {"torch": "2.13.0"})
    for rank in (0, 1):
        writer = recording.Writer(directory, rank=rank, warn=sys.exit)
        for reading, step in zip(readings(rank), STEPS, strict=True):
            writer.write([reading], step)
        if rank == 0:
            writer.close()
    bundle = bundle_directory(directory, 0, STEPS[1].finding)
    bundle.mkdir(parents=True)
    (bundle / "evidence.json").write_text("{}\n")
    finish_run(directory, "finished", 0, [])


if __name__ == "__main__":
    write_golden()
