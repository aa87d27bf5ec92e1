"""Numbers in sentences: short, and never the wrong side of a limit."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hypocenter.diagnose.numbers import above, short
from hypocenter.in_words import counted


def test_numbers_read_as_people_write_them():
    written = [short(x) for x in (65504.0, 66246.0, 1.1e5, 3.4028234663852886e38, 0.0, 1e-8, 0.25586, 212.0)]

    assert written == ["65504", "66246", "1.1e5", "3.4e38", "0", "1e-8", "0.25586", "212"]
    assert [short(x) for x in (math.nan, math.inf, -math.inf)] == ["NaN", "+inf", "-inf"]


def test_counts_have_their_noun():
    assert (counted(1, "value"), counted(16_777_216, "value")) == ("1 value", "16,777,216 values")


@given(st.floats(min_value=-1e300, max_value=1e300))  # nearer to the end of float64 the text rounds out of it
def test_short_is_within_half_a_percent(x):
    assert math.isclose(float(short(x)), x, rel_tol=5.1e-3, abs_tol=1e-320)


@given(st.floats(min_value=1.0, max_value=1e300), st.floats(min_value=1e-12, max_value=10.0))
def test_a_value_above_its_limit_is_shown_above_it(limit, excess):
    value = limit * (1 + excess)

    shown, _, bound = above(value, limit).partition(" > ")

    assert float(shown) > limit
    assert bound == short(limit)
