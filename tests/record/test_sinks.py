"""record/sinks: what each sink makes of steps and findings."""

from __future__ import annotations

import io

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.catalogue import SinkStart
from hypocenter.record.sinks.console import Console
from hypocenter.record.sinks.memory import Memory

FINDING = Finding(code="HC101", kind="nonfinite", severity="error", title="the product overflowed float16", step=3)


def console_lines(steps: list[StepRecord], *, rank: int = 0, seconds_a_step: float = 1.0) -> list[str]:
    """What the console prints of steps that come at an even pace."""
    stream, now_s = io.StringIO(), -seconds_a_step

    def clock() -> float:
        nonlocal now_s
        now_s += seconds_a_step
        return now_s

    console = Console(SinkStart(rank=rank), interval_s=10.0, stream=stream, clock=clock)
    for step in steps:
        console.write([], step)
    console.finding(FINDING)
    console.close()
    assert "\r" not in stream.getvalue()
    return stream.getvalue().splitlines()


def test_memory_keeps_everything() -> None:
    memory = Memory()
    reading = Reading(step=0, microbatch=0, phase="loss", site="loss", port="value", order=0)

    memory.write([reading], StepRecord(step=0))
    memory.write([reading], None)
    memory.finding(FINDING)

    assert (memory.readings, memory.steps, memory.findings) == ([reading] * 2, [StepRecord(step=0)], [FINDING])


def test_console_prints_one_line_an_interval() -> None:
    lines = console_lines([StepRecord(step=s, loss=2.5, step_ms=101.0, tap_ms=1.0) for s in range(25)])

    assert lines == [
        "hypocenter: step 0, loss 2.5, tap 1.0 %",
        "hypocenter: step 10, loss 2.5, tap 1.0 %",
        "hypocenter: step 20, loss 2.5, tap 1.0 %",
        "hypocenter: error[HC101]: the product overflowed float16, step 3",
    ]


def test_console_says_all_that_is_known() -> None:
    step = StepRecord(step=1200, loss=0.5, grad_norm=1.25, loss_scale=65536.0, lr=1e-4, step_ms=0.0, tap_ms=0.0)

    assert console_lines([step])[0] == (
        "hypocenter: step 1,200, loss 0.5, grad norm 1.25, loss scale 6.554e+04, lr 0.0001"
    )


def test_console_never_holds_back_a_bad_step() -> None:
    steps = [
        StepRecord(step=0),
        StepRecord(step=1, n_bad_grads=7, skipped=True, grad_norm=float("inf")),
        StepRecord(step=2),
    ]

    assert console_lines(steps)[1:-1] == [
        "hypocenter: step 1, grad norm inf, 7 parameters with non-finite gradients, step skipped"
    ]


def test_console_is_silent_on_other_ranks() -> None:
    assert console_lines([StepRecord(step=s) for s in range(25)], rank=1) == []
