"""What the report page shows of the loss-scale diary, and which scale its map of gradients assumes."""

from __future__ import annotations

import math

import pytest
from report_fakes import FakeRecording, reading

from hypocenter.detect.diary import FOUND_INF, SCALE, SCALED_GRAD
from hypocenter.diagnose.evidence import Evidence
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.report.page.diary import MOST_LINES, MOST_POINTS, diary_of
from hypocenter.report.page.payload import carried_of, replayed_scales


def number(site: str, step: int, value: float, module: str = "") -> Reading:
    bad = {"n_posinf": int(value > 0), "n_nan": int(math.isnan(value))}
    summary = Summary(n=1, sum=value, absmax=abs(value)) if math.isfinite(value) else Summary(n=1, **bad)
    return reading(
        site, 0, 0.0, step=step, phase="scaler", port="value", dtype="float32", shape=(), module=module, summary=summary
    )


def overflow(param: str, step: int, n_bad: int, absmax: float, n: int = 100) -> Reading:
    summary = Summary(n=n, n_posinf=n_bad, absmax=absmax)
    return reading(param, 1, 0.0, step=step, phase="scaler", port=SCALED_GRAD, dtype="float32", summary=summary)


def scaled_run(scales: list[float], skipped: set[int], culprits: list[Reading] = [], rank: int = 0):  # noqa: B006
    rows = [row for step, scale in enumerate(scales) for row in (
        number(SCALE, step, scale, "GradScaler"), number(f"{FOUND_INF}cpu", step, float(step in skipped))
    )]  # fmt: skip
    return [(rank, row) for row in [*rows, *culprits]]


def view(rows, records=()):
    return diary_of(FakeRecording(rows=rows).table(), records)


def test_a_run_without_a_scaler_has_no_diary() -> None:
    assert view([(0, reading("layer", 0, 1.0))]) is None
    assert view([(0, overflow("loss_scale", 0, 1, 1.0))]) is None  # a parameter of that name is not a scaler


def test_the_curve_keeps_its_corners_its_ends_and_the_skipped_steps() -> None:
    scales = [8.0] * 100 + [4.0] * 100 + [8.0] * 100

    found = view(scaled_run(scales, {50, 99}))

    assert found is not None
    assert found.chart["steps"] == [0, 50, 99, 100, 199, 200, 299]
    assert found.chart["scale"] == [8, 8, 8, 4, 4, 8, 8]
    assert found.chart["skipped"] == [50, 99]


def test_a_long_restless_curve_is_thinned_and_keeps_its_end() -> None:
    found = view(scaled_run([2.0 ** (i % 3) for i in range(3 * MOST_POINTS)], set()))

    assert found is not None
    assert len(found.chart["steps"]) <= MOST_POINTS + 1
    assert found.chart["steps"][-1] == 3 * MOST_POINTS - 1


def test_the_sentence_tells_skips_and_extremes() -> None:
    found = view(scaled_run([2.0**20, 2.0**19, 1024.0, 2.0**21, 2048.0], {0, 1, 3}))

    assert found is not None
    assert found.summary == (
        "GradScaler: 3 of 5 updates skipped; scale 2^20 at step 0, 2048 at step 4; lowest 1024 at step 2; "
        "highest 2^21 at step 3"
    )


@pytest.mark.parametrize("scale", [0.0, math.inf, math.nan, 1e-310])
def test_any_scale_can_be_shown(scale: float) -> None:
    found = view(scaled_run([4.0, scale, scale], {0, 1, 2}, [overflow("w", 1, 1, 3.0)]))

    assert found is not None
    assert found.chart["scale"][0] == 4.0
    assert found.chart["scale"][1] == (scale if scale == 1e-310 else None)


def test_the_table_has_the_most_frequent_first_and_says_how_many_are_left_out() -> None:
    culprits = [overflow("b.weight", step, 2 + step, 60000.0 - step) for step in (1, 3)]
    culprits += [overflow("a.weight", 1, 100, 0.0), *(overflow(f"c{i}", 1, 1, 5.0) for i in range(MOST_LINES))]

    found = view(scaled_run([1024.0] * 4, {1, 3}, culprits))

    assert found is not None
    first, second = found.lines[:2]
    assert (first.param, first.n_overflows, first.first_step, first.last_step) == ("b.weight", 2, 1, 3)
    assert (first.share, first.largest, first.unscaled) == ("5 %", "59999", "58.593")
    assert (second.param, second.share, second.largest, second.unscaled) == ("a.weight", "all", "none was finite", "")
    assert (len(found.lines), found.n_more) == (MOST_LINES, 2)
    assert found.chart["culprits"]["3"] == {"named": [["b.weight", "5 %", "59997"]], "n": 1}
    assert found.chart["culprits"]["1"]["n"] == 2 + MOST_LINES


def test_of_several_ranks_the_lowest_is_shown() -> None:
    rows = scaled_run([8.0, 8.0], set(), rank=2) + scaled_run([4.0, 4.0], {1}, [overflow("w", 1, 1, 3.0)], rank=1)

    found = view(rows)

    assert found is not None
    assert found.summary.startswith("GradScaler, rank 1: 1 of 2 updates skipped")
    assert [line.param for line in found.lines] == ["w"]


def test_a_record_that_says_skipped_is_believed() -> None:
    rows = [(0, number(SCALE, step, 8.0, "DynamicLossScaler")) for step in range(3)]

    found = view(rows, [(0, StepRecord(step=1, skipped=True, loss_scale=8.0)), (1, StepRecord(step=2, skipped=True))])

    assert found is not None
    assert found.chart["skipped"] == [1]


def test_gradients_carry_the_scale_of_their_step_and_parameters_one_that_was_taken_out_do_not() -> None:
    squares = Summary(n=4, n_hist=4, absmax=1.0, absmin=1.0, sumsq=4.0)
    grads = [(0, reading("w", 0, 0.0, step=s, phase="grad", port="grad", summary=squares)) for s in (0, 1)]
    records = [(0, StepRecord(step=s, loss_scale=scale, grad_norm=2.0)) for s, scale in enumerate((1024.0, 2048.0))]

    carried = carried_of(FakeRecording(rows=grads).table(), records, [0, 1])

    assert carried == {"backward": [10, 11], "grad": [0, 0], "scaler": [10, 11]}


def test_a_replay_at_another_scale_carries_that_one() -> None:
    evidence = [
        Evidence(id="a", trigger="nonfinite-grad", step=1, rank=0, loss_scale=1024.0, replayed_scale=1.0),
        Evidence(id="b", trigger="nonfinite-grad", step=0, rank=0, loss_scale=1024.0),
    ]
    records = [(0, StepRecord(step=step, loss_scale=1024.0)) for step in (0, 1)]
    table = FakeRecording(rows=[(0, reading("w", 0, 1.0))]).table()

    assert carried_of(table, records, [0, 1], replayed_scales(evidence))["backward"] == [10, 0]
    assert carried_of(table, records, [0, 1])["backward"] == [10, 10]


def test_without_a_scaler_nothing_is_carried() -> None:
    assert carried_of(FakeRecording(rows=[(0, reading("w", 0, 1.0))]).table(), [(0, StepRecord(step=0))], [0]) == {
        "backward": [0], "grad": [0], "scaler": [0],
    }  # fmt: skip
