"""Curves of a run as pictures."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from report_fakes import OVERFLOW

from hypocenter.nouns import StepRecord, replace
from hypocenter.report.page.curves import MOST_POINTS, is_bad, pictures


def steps(n: int, **more: object) -> list[tuple[int, StepRecord]]:
    return [(0, StepRecord(step=s, loss=3.0 / (s + 1), grad_norm=1.0 + s, **more)) for s in range(n)]  # type: ignore[arg-type]


def test_each_quantity_that_changed_has_a_titled_picture_with_the_finding_marked() -> None:
    found = pictures(steps(9, lr=0.1), [replace(OVERFLOW, step=4)])

    assert [picture.title for picture in found] == ["Loss", "Gradient norm (L2, before clipping)"]
    for picture in found:
        drawn = ElementTree.fromstring(str(picture.svg))
        assert [e.get("class") for e in drawn if e.tag == "path"].count("mark") == 1
        assert ("mark", "a finding") in picture.legend
        assert any(e.text == "step" for e in drawn.iter("text"))


def test_a_learning_rate_that_changes_is_drawn() -> None:
    records = [(0, StepRecord(step=s, loss=1.0, lr=0.1 * s)) for s in range(5)]

    assert [picture.title for picture in pictures(records, [])] == ["Loss", "Learning rate"]


def test_steps_that_were_not_finite_are_one_shade_each_run_of_them() -> None:
    records = [(0, StepRecord(step=s, loss=math.nan if s in (3, 4, 8) else 1.0 + s)) for s in range(10)]

    (loss,) = pictures(records, [])

    assert str(loss.svg).count('class="shade"') == 2
    assert loss.curves[0].values[3] is None


def test_a_few_ranks_have_a_lane_each_and_many_a_mean() -> None:
    two = [(rank, StepRecord(step=s, loss=float(s + rank))) for rank in range(2) for s in range(4)]
    many = [(rank, StepRecord(step=s, loss=float(s + rank))) for rank in range(9) for s in range(4)]

    assert [curve.name for curve in pictures(two, [])[0].curves] == ["rank 0", "rank 1"]
    assert [curve.values[0] for curve in pictures(many, [])[0].curves] == [4.0]


def test_a_long_run_is_thinned_and_a_short_one_has_no_picture() -> None:
    (loss, _) = pictures(steps(40_000), [])

    assert MOST_POINTS / 2 <= len(loss.curves[0].steps) <= MOST_POINTS
    assert loss.title == "Loss (log scale)"
    assert pictures(steps(1), []) == []


@pytest.mark.parametrize(("record", "expected"), [
    (StepRecord(step=0, loss=1.0, grad_norm=math.inf, n_bad_grads=1, skipped=True, loss_scale=2.0), False),
    (StepRecord(step=0, loss=math.nan, n_bad_grads=1, skipped=True, loss_scale=2.0), True),
    (StepRecord(step=0, loss=1.0, n_bad_grads=1), True),
    (StepRecord(step=0, loss=1.0, grad_norm=1.0), False),
])  # fmt: skip
def test_what_a_scaler_skips_is_not_bad(record: StepRecord, expected: bool) -> None:
    assert is_bad(record) == expected
