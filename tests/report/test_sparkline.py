"""Numbers as a line of characters."""

from __future__ import annotations

import math

import pytest

from hypocenter.report.closing import sparkline


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([0.0, 1.0, 2.0, 7.0], "▁▂▃█"),
        ([3.0, 2.0, math.nan, math.inf], "█▁✕✕"),
        ([None, 1.0], " ▁"),
        ([math.nan], "✕"),
    ],
)
def test_sparkline(values: list[float | None], line: str) -> None:
    assert sparkline(values) == line


def test_a_bad_value_is_never_hidden_by_thinning() -> None:
    values: list[float | None] = [1.0] * 999
    values[501] = math.nan

    line = sparkline(values, 40)

    assert len(line) == 40
    assert line.count("✕") == 1


def test_plain_characters_where_the_stream_has_no_others() -> None:
    assert sparkline([0.0, 1.0, math.nan], ascii_only=True).isascii()
