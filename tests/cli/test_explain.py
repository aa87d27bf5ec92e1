"""`hypocenter explain`."""

from __future__ import annotations

import json

import pytest
from recordings import run

from hypocenter.manual import HEADINGS


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("HC101", "rule"),
        ("hc101", "rule"),
        ("format-overflow", "cause"),
        ("Norm-EPS", "fit"),
        ("Model.norm_eps", "item"),
    ],
)
def test_page_has_message_and_all_headings(name: str, kind: str) -> None:
    said = run("explain", name)

    assert said.code == 0
    assert said.out.partition("\n")[0].lower().startswith(f"{name.lower()} ({kind}): ")
    assert [line for line in said.out.splitlines() if line in HEADINGS] == list(HEADINGS)
    assert said.out.splitlines()[-1] == "all there is: hypocenter list"


def test_json_page() -> None:
    page = json.loads(run("explain", "format-overflow", "--json").out)

    assert page["schema"] == "hypocenter.manual/1"
    assert [heading for heading, _ in page["sections"]] == list(HEADINGS)


def test_typo_names_the_nearest() -> None:
    said = run("explain", "format-overflw")

    assert said.code == 2
    assert said.err.startswith("error[unknown-name]: nothing is called 'format-overflw'\n")
    assert "did you mean 'format-overflow'?" in said.err


def test_a_cause_without_a_page_of_its_own_names_the_rules_that_have_one() -> None:
    said = run("explain", "update-rounded-away")

    assert said.code == 2
    assert "explain the code of the finding, one of HC2" in said.err


def test_a_code_that_is_gone_names_the_one_that_says_it_now() -> None:
    said = run("explain", "hc302")

    assert said.code == 0
    assert said.out.startswith("HC302 is now HC301\n\nHC301 (rule): ")
    assert json.loads(run("explain", "HC302", "--json").out)["name"] == "HC301"
