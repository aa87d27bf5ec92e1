"""session/output.py: what is found while training goes on is told once, and asked only when there is a reason."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from hypocenter.nouns import StepRecord
from hypocenter.record.run_file import start_run
from hypocenter.record.writer import Writer
from hypocenter.session.output import FoundLive


def test_a_bad_step_is_told_soon_and_once(tmp_path: Path) -> None:
    start_run(tmp_path, ["train.py"], {}, 1, {})
    writer = Writer(tmp_path, rank=0, warn=pytest.fail)
    steps = [StepRecord(step=s, loss=1.0, n_bad_grads=3 if s == 2 else 0, step_ms=1.0) for s in range(3)]
    for step in steps:
        writer.write([], step)
    found = FoundLive(tmp_path)

    assert [found.after(step) for step in steps] == [[], [], []]
    until, told = time.monotonic() + 60, []
    while not told and time.monotonic() < until:
        told = found.after(None)
        time.sleep(0.02)

    assert [(f.severity, f.step) for f in told] == [("error", 2)]
    assert found.after(steps[2]) == []  # it was looked just now
    writer.close()
    assert [f for f in found.rest(60) if f.step == 2 and f.severity == "error"] == []


def test_what_cannot_be_read_or_takes_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"hypocenter check took more than 0\.01 s"):
        FoundLive(tmp_path).rest(0.01)
    with pytest.raises(msgspec.DecodeError):
        FoundLive(tmp_path / "nothing").rest(60)
