"""Manual pages in docstrings."""

from __future__ import annotations

from hypocenter.manual import HEADINGS, parse

PAGE = """The message.

    What it means
        One
        paragraph.

    How it is decided
        By a number.

    What to do
        Change it.

        Then look again.

    When it is wrong
        Rarely.
    """


def test_a_page_is_read_in_order():
    page = parse(PAGE)

    assert page.message == "The message."
    assert [heading for heading, _ in page.sections] == list(HEADINGS)
    assert dict(page.sections)["What it means"] == "One\nparagraph."
    assert dict(page.sections)["What to do"] == "Change it.\n\nThen look again."
    assert page.missing == ()


def test_missing_and_empty_headings_are_named():
    assert parse(None).missing == HEADINGS
    assert parse("Only a message.").missing == HEADINGS
    assert parse("M.\n\nWhat it means\n\nWhat to do\n    That.").missing == (HEADINGS[0], HEADINGS[1], HEADINGS[3])


def test_markdown_has_the_title_and_all_sections():
    text = parse(PAGE).markdown("format-overflow")

    assert text.startswith("## format-overflow\n\nThe message.\n\n**What it means.** One\nparagraph.")
    assert text.endswith("**When it is wrong.** Rarely.\n")
