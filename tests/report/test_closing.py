"""What `hypocenter run` ends with."""

from __future__ import annotations

import math

import pytest
from report_fakes import HEALTHY, FakeRecording

from hypocenter.nouns import StepRecord
from hypocenter.report.closing import closing, overhead
from hypocenter.report.screen import Screen


def test_steps_that_a_scaler_skipped_are_no_crosses() -> None:
    records = [
        StepRecord(step=i, loss=1.0, grad_norm=math.inf if i % 3 == 0 else 2.0, loss_scale=1024.0, skipped=i % 3 == 0)
        for i in range(300)
    ]

    text = closing(FakeRecording(), HEALTHY, records, Screen())

    assert "✕" not in text
    assert "2 -> 2" in text


@pytest.mark.parametrize(
    ("step_ms", "tap_ms", "text"),
    [
        (1.0, 0.467, "overhead 0.47 ms per step"),
        (19.0, 3.0, "overhead 3.0 ms per step"),
        (60.0, 50.0, "overhead 50.0 ms per step"),
        (250.0, 2.0, "overhead 2.0 ms per step (0.8 %)"),
        (0.0, 0.0, ""),
    ],
)
def test_a_share_is_told_of_steps_that_take_long(step_ms: float, tap_ms: float, text: str) -> None:
    records = [StepRecord(step=i, step_ms=step_ms, tap_ms=tap_ms) for i in range(3)]

    assert (
        overhead([*records, StepRecord(step=3, step_ms=900.0, tap_ms=800.0, finding="x")][: 4 if text else 3]) == text
    )


def test_what_the_first_steps_cost_once_is_told_apart() -> None:
    records = [StepRecord(step=i, step_ms=10.0, tap_ms=700.0 if i < 2 else 0.5) for i in range(20)]

    assert overhead(records) == "overhead 0.50 ms per step, after 1.4 s in the first two"
