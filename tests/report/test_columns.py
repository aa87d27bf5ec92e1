"""Rows of text under headings."""

from __future__ import annotations

from hypocenter.report.columns import aligned

ROWS = [("site", "|max|"), ("encoder.layers.11.attention.output.dense", "1.5"), ("head", "22")]


def test_a_name_gives_way_in_its_middle_when_a_terminal_is_too_narrow() -> None:
    lines = list(aligned(ROWS, right=frozenset({1}), room=36, name=0))

    assert max(map(len, lines)) == 36
    assert lines[1].startswith("encoder.l…")
    assert lines[1].endswith(".output.dense    1.5")
    assert lines[2].startswith("head  ")


def test_nothing_is_cut_where_there_is_no_terminal() -> None:
    assert "encoder.layers.11.attention.output.dense" in list(aligned(ROWS, name=0))[1]


def test_a_name_keeps_enough_to_be_told() -> None:
    lines = list(aligned(ROWS, room=10, name=0))

    assert len(lines[1].split()[0]) == 24
