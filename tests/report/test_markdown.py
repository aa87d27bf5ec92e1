"""Findings as Markdown."""

from __future__ import annotations

from collections.abc import Callable

from report_fakes import FINDINGS, HOSTILE, FakeRecording

from hypocenter.nouns import Diagnosis
from hypocenter.report.formats import markdown


def test_markdown_looks_as_the_gold_file_says(same_as_gold: Callable[[str, str], None]) -> None:
    same_as_gold("findings.md", markdown.render(FakeRecording(), FINDINGS))


def test_hostile_names_are_not_markup() -> None:
    text = markdown.render(FakeRecording(), Diagnosis(status="findings", findings=(HOSTILE,)))

    outside_code = [line for line in text.splitlines() if "`" not in line.replace("\\`", "")]
    prose = [line for line in outside_code if not line.startswith(("3 |", "  |"))]
    assert not any("<script>" in line or "<img" in line for line in prose)
    assert "\x1b" not in text


def test_only_what_would_begin_an_item_of_a_list_is_escaped() -> None:
    assert [markdown.escaped(text) for text in ("0.5", "1. one", "-1", "2.")] == ["0.5", "1\\. one", "\\-1", "2\\."]
