"""Growth is told only when it is there."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.diagnose.why import growth


@given(st.floats(min_value=1.0, max_value=60.0), st.integers(min_value=0, max_value=1000))
def test_exact_doubling_is_recovered(doubling_steps, since):
    steps = range(since, since + int(4 * doubling_steps) + 8, 2)
    history = [(step, 2.0 ** ((step - since) / doubling_steps)) for step in steps]

    found = growth(history)

    assert found is not None
    assert found.since_step == since
    assert math.isclose(found.doubling_steps, doubling_steps, rel_tol=1e-6)


def test_a_flat_start_does_not_count():
    history = [(step, 8.0 + 0.1 * (step % 3)) for step in range(0, 150, 10)]
    history += [(step, 8.0 * 2.0 ** ((step - 150) / 10)) for step in range(150, 210, 5)]

    assert growth(history).sentence() == "|max| had doubled every 10 steps since step 150"


@pytest.mark.parametrize(
    "history",
    [
        [],
        [(0, 1.0), (1, 2.0), (2, 4.0)],  # three points make a line through anything
        [(step, 1.0 + 0.2 * step) for step in range(4)],  # grows by 0.7 bits, less than a doubling
        [(step, 2.0**-step) for step in range(20)],  # falls
        [(step, 4.0 if step % 2 else 1.0) for step in range(20)],  # jumps up and down
        [(step, math.inf) for step in range(20)],
        [(step, 0.0) for step in range(20)],
        [(5, 2.0**k) for k in range(20)],  # all at one step
    ],
    ids=["empty", "three", "small", "falls", "jumps", "inf", "zero", "one step"],
)
def test_no_growth(history):
    assert growth(history) is None
