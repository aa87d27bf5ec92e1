"""record/event_file.py: TensorBoard's own reader gives back what was written without it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from hypocenter.nouns import Finding, Reading, StepRecord, Summary
from hypocenter.record.event_file import EventFile

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_scalars_histograms_and_texts_come_back(tmp_path: Path) -> None:
    summary = Summary(n=7, n_hist=7, n_zero=1, hist_first=-3, hist=(1, 0, 5), absmax=0.9)
    reading = Reading(step=4, microbatch=0, phase="forward", site="wi", port="out[0]", order=0, summary=summary)
    finding = Finding(code="HC101", kind="nonfinite", severity="error", title="overflow", step=4)

    file = EventFile(tmp_path, wall_time_s=100.0)
    for step in (3, 4):
        file.step(
            StepRecord(step=step, loss=float("nan") if step == 4 else 2.5, grad_norm=1e300, lr=-0.25), wall_time_s=101.0
        )
    file.readings([reading])
    file.finding(finding, "**overflow** in ü")
    file.close()

    events = accumulator.EventAccumulator(str(tmp_path), {"scalars": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    assert {"loss", "grad_norm", "lr", "step_ms", "tap_ms", "n_bad_grads", "skipped"} == set(events.Tags()["scalars"])
    assert [(e.step, e.wall_time) for e in events.Scalars("loss")] == [(3, 101.0), (4, 101.0)]
    assert events.Scalars("loss")[0].value == 2.5
    assert math.isnan(events.Scalars("loss")[1].value)
    assert events.Scalars("grad_norm")[0].value == math.inf  # a scalar of TensorBoard's is a float32
    assert events.Scalars("lr")[0].value == -0.25
    (histogram,) = events.Histograms("forward/wi/out[0] (log2 of magnitudes)")
    value = histogram.histogram_value
    assert (histogram.step, value.num, value.min, value.max) == (4, 6.0, -3.0, 0.0)
    assert dict(zip(value.bucket_limit, value.bucket, strict=True)) == {-3.0: 0.0, -2.0: 1.0, -1.0: 0.0, 0.0: 5.0}
    (text,) = events.Tensors("findings/HC101")
    assert (text.step, text.tensor_proto.string_val[0].decode()) == (4, "**overflow** in ü")
    assert events.SummaryMetadata("findings/HC101").plugin_data.plugin_name == "text"


def test_negative_steps_and_names_of_others_do_no_harm(tmp_path: Path) -> None:
    summary = Summary(n=1, n_hist=1, hist_first=0, hist=(1,))
    reading = Reading(step=-1, microbatch=0, phase="forward", site="\ud800", port="out[0]", order=0, summary=summary)

    file = EventFile(tmp_path)
    file.readings([reading])
    file.close()

    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert np.array([e.step for e in events.Histograms("forward/?/out[0] (log2 of magnitudes)")]).tolist() == [-1]
