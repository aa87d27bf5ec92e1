"""A recording of two ranks with modules inside each other, two micro-batches, a step that failed, and odd names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.nouns import Attempt, Place, Reading, StepRecord, Summary
from hypocenter.record.place_file import write_place
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.writer import Writer

STARTED_NS = 1_790_000_000_123_456_789
CALLS = (("model", 0, 7), ("model.attn", 1, 2), ("model.mlp", 3, 6), ("model.mlp.up", 4, 5))
"""Site, and the order of its input and output: up lies in mlp, mlp and attn in the model."""


def forward(step: int, microbatch: int, *, n_inf: int = 0) -> list[Reading]:
    rows: list[Reading] = []
    for site, first, last in CALLS:
        for port, order in (("in[0]", first), ("out[0]", last)):
            is_bad = n_inf and site == "model.mlp" and port == "out[0]"
            summary = Summary(
                n=16, n_hist=16, n_zero=4, hist_first=-2, hist=(3, 0, 9), absmax=1.5, absmin=0.25, min=-1.5, max=1.5,
                sumsq=4.0, n_posinf=n_inf if is_bad else 0,
            )  # fmt: skip
            rows.append(
                Reading(
                    step=step, microbatch=microbatch, phase="forward", site=site, port=port, dtype="float16",
                    order=order + 8 * microbatch, shape=(2, 8), module="Block", summary=summary, names=(site, '=A1"'),
                )
            )  # fmt: skip
    return sorted(rows, key=lambda row: row.order)


def record(run: Path) -> Path:
    start_run(run, ["python", "train.py"], {"level": "modules"}, 2, {"hypocenter": "0"})
    for rank in range(2):
        writer = Writer(run, rank=rank, warn=lambda text: pytest.fail(text))
        for step in range(3):
            is_bad = step == 2
            record = StepRecord(
                step=step, n_microbatches=2, loss=float("nan") if is_bad else 3.0 - step, grad_norm=1.0, lr=1e-3,
                step_ms=10.0 + step, tap_ms=2.0, n_bad_grads=4 if is_bad else 0,
            )  # fmt: skip
            writer.write([*forward(step, 0), *forward(step, 1, n_inf=5 if is_bad else 0)], record)
        writer.close()
        attempt = Attempt(number=0, host="h", pid=1, started_ns=STARTED_NS + rank)
        write_place(run, Place(rank=rank, world_size=2), attempt)
    finish_run(run, "finished", 0, [])
    return run
