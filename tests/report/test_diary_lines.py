"""The loss-scale diary as lines: what is merged, what stands alone, how it reads."""

from __future__ import annotations

import math

import pytest
from report_fakes import FakeRecording
from test_diary_on_page import number, overflow, scaled_run

from hypocenter.detect.diary import SCALE
from hypocenter.errors import UnknownNameError
from hypocenter.nouns import StepRecord
from hypocenter.report.diary import in_words, only_of, percent, scale, stretches


def found_in(rows, records=()):
    return stretches(FakeRecording(rows=rows).table(), records)


def test_calm_steps_at_one_scale_are_one_line_and_a_skip_stands_alone() -> None:
    found = found_in(scaled_run([8.0, 4.0, 4.0, 4.0, 8.0, 8.0], {0, 5}))

    assert [(s.first_step, s.last_step, s.scale, s.n_skipped) for s in found] == [
        (0, 0, 8.0, 1), (1, 3, 4.0, 0), (4, 4, 8.0, 0), (5, 5, 8.0, 1),
    ]  # fmt: skip


def test_a_stretch_has_its_largest_gradients_and_its_last_counter() -> None:
    rows = scaled_run([4.0] * 3, set(), [overflow("a", 0, 0, 5.0), overflow("a", 2, 0, 7.0), overflow("b", 1, 0, 6.0)])
    rows += [(0, number(f"{SCALE}.growth_tracker", step, float(step))) for step in range(3)]

    (stretch,) = found_in(rows)

    assert [(seen.param, seen.largest) for seen in stretch.nearest] == [("a", 7.0), ("b", 6.0)]
    assert stretch.growth_tracker == 2


def test_ranks_are_apart_and_named_only_when_there_are_several() -> None:
    one, two = scaled_run([4.0] * 3, set()), scaled_run([4.0] * 3, {1}, rank=3)

    assert [(s.rank, s.first_step, s.last_step) for s in found_in(one + two)] == [
        (0, 0, 2), (3, 0, 0), (3, 1, 1), (3, 2, 2),
    ]  # fmt: skip
    assert "rank" not in next(in_words(found_in(one)))
    assert "rank" in next(in_words(found_in(one + two)))


def test_words() -> None:
    culprits = [overflow("w", 0, 25, 60000.0), overflow("dead", 0, 100, 0.0), overflow("v", 2, 0, 512.0)]
    rows = scaled_run([2.0**22, 1024.0, 1024.0], {0}, culprits)
    rows += [
        (0, number(f"{SCALE}.{name}", 2, value))
        for name, value in (("growth_tracker", 2.0), ("growth_interval", 2000.0))
    ]

    assert list(in_words(found_in(rows))) == [
        "steps   scale  without overflow  update   gradients, scale in",
        "0       2^22                     skipped  dead (all not finite), w (25 % not finite, largest finite 60000)",
        "1 to 2  1024   2 of 2000         made     largest seen 512 in v",
    ]


def test_of_several_optimizers_it_is_said_how_many_were_skipped() -> None:
    rows = [*scaled_run([4.0], set()), *scaled_run([4.0], {0})]

    assert "1 of 2 skipped" in list(in_words(found_in(rows)))[1]


def test_a_scaler_that_did_not_tell_may_be_known_to_have_skipped() -> None:
    (stretch,) = found_in([(0, number(SCALE, 0, 8.0))], [(0, StepRecord(step=0, skipped=True))])

    assert stretch.n_skipped == 1


def test_one_parameter_can_be_followed_and_the_scale_stays() -> None:
    table = FakeRecording(rows=scaled_run([4.0], {0}, [overflow("a.w", 0, 1, 5.0), overflow("b.w", 0, 1, 5.0)])).table()

    (stretch,) = stretches(only_of(table, "b.*"), ())

    assert ([seen.param for seen in stretch.culprits], stretch.scale) == (["b.w"], 4.0)
    with pytest.raises(UnknownNameError, match="no site matches"):
        only_of(table, "nowhere")


@pytest.mark.parametrize(("value", "text"), [
    (65536.0, "65536"), (2.0**22, "2^22"), (3e6, "3e6"), (0.0, "0"), (math.inf, "+inf"), (2.0**-20, "2^-20"),
    (0.5, "0.5"), (2.0**-11, "2^-11"),
])  # fmt: skip
def test_a_scale_in_words(value: float, text: str) -> None:
    assert scale(value) == text


@pytest.mark.parametrize(("share", "text"), [(1.0, "all"), (0.25, "25 %"), (1e-3, "0.1 %"), (1e-5, "< 0.01 %")])
def test_a_share_in_words(share: float, text: str) -> None:
    assert percent(share) == text
