"""A schedule is a predicate on step numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.errors import ConfigError
from hypocenter.schedule import parse

steps = st.integers(0, 10**6)
spans = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), min_size=1, max_size=6)


@settings(deadline=None)
@given(st.integers(1, 1000), steps)
def test_every(period: int, step: int) -> None:
    assert parse(f"every={period}")(step) == (step in range(0, step + 1, period))


@settings(deadline=None)
@given(spans, st.sampled_from([",", ", ", " ,"]))
def test_steps_and_ranges(given_spans: list[tuple[int, int]], comma: str) -> None:
    text = comma.join(str(first) if not more else f"{first}-{first + more}" for first, more in given_spans)
    wanted = {step for first, more in given_spans for step in range(first, first + more + 1)}

    schedule = parse(text)

    assert {step for step in range(300) if schedule(step)} == wanted


@settings(deadline=None)
@given(steps, st.sampled_from(["never", "on-finding", " never "]))
def test_never(step: int, text: str) -> None:
    assert parse(text)(step) is False


def test_parts_are_joined() -> None:
    schedule = parse("1, 3-4,every=10")

    assert [step for step in range(25) if schedule(step)] == [0, 1, 3, 4, 10, 20]


@settings(deadline=None)
@given(steps)
def test_every_one_is_every_step(step: int) -> None:
    assert parse("every=1")(step)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "every",
        "every=",
        "every=0",
        "every=-1",
        "every=1.5",
        "evry=3",
        "1-",
        "-1",
        "1,,2",
        "1-2-3",
        "a",
        "1;2",
        "1,never",
    ],
)
def test_anything_else_is_an_error_that_says_how(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)

    assert repr(text) in caught.value.what
    assert "every=100" in caught.value.fix


@settings(deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_a_schedule_or_a_config_error(text: str) -> None:
    try:
        schedule = parse(text)
    except ConfigError:
        return
    assert schedule(0) in (True, False)
