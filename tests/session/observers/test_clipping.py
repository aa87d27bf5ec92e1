"""The coefficient of clipping is what all norms have in common before and after it."""

import pytest

from hypocenter.session.observers.clipping import SPREAD, _common_ratio


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 2.0, "b": 4.0}, {"a": 0.5, "b": 1.0}, 0.25),
        ({"a": 2.0, "b": 4.0, "dead": 0.0}, {"a": 2.0, "b": 4.0, "dead": 0.0}, 1.0),
        ({"a": 2.0, "b": 4.0}, {"a": 0.5, "b": 1.1}, None),  # clipped one by one, or reduced by hand
        ({"a": 2.0}, {"a": 0.5}, None),  # of a single parameter it may be anything's
        ({"a": 2.0, "b": 4.0}, {"a": 0.5, "b": float("nan")}, None),
        ({"a": 2.0, "b": 4.0}, {"a": 0.5, "b": 0.0}, None),
        ({}, {"a": 0.5, "b": 1.0}, None),
    ],
)
def test_common_ratio(before: dict[str, float], after: dict[str, float], expected: float | None) -> None:
    assert _common_ratio(before, after, SPREAD) == expected


def test_rounding_of_norms_is_allowed() -> None:
    found = _common_ratio({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 0.5, "b": 0.500001, "c": 0.499999}, SPREAD)

    assert found == pytest.approx(0.5, rel=1e-5)
