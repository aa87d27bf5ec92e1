"""Sink tensorboard: TensorBoard's own reader shows the run, and what broke in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sink_jobs import BAD_STEP, N_STEPS, train

from hypocenter.record.catalogue import SinkStart
from hypocenter.record.sinks.tensorboard import tensorboard

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_tensorboard_shows_scalars_histograms_and_findings(tmp_path: Path) -> None:
    train(tmp_path / "run", f"tensorboard={tmp_path / 'logs'}", level="modules")

    events = accumulator.EventAccumulator(str(tmp_path / "logs" / "rank-00000"))
    events.Reload()
    tags = events.Tags()
    assert [e.step for e in events.Scalars("loss")] == list(range(N_STEPS))
    assert [e.value for e in events.Scalars("lr")] == pytest.approx([1e-2] * N_STEPS)
    assert [e.step for e in events.Scalars("n_bad_grads") if e.value] == [BAD_STEP]
    assert "forward/0/out[0] (log2 of magnitudes)" in tags["histograms"]
    (tag,) = [tag for tag in tags["tensors"] if tag.startswith("findings/HC1")]
    (text,) = events.Tensors(tag)
    assert text.step == BAD_STEP
    assert "bad-input" in text.tensor_proto.string_val[0].decode()


def test_it_writes_beside_the_recording_unless_it_is_told_to(tmp_path: Path) -> None:
    tensorboard(SinkStart(directory=tmp_path, rank=12)).close()

    assert list((tmp_path / "tensorboard" / "rank-00012").glob("events.out.tfevents.*"))
