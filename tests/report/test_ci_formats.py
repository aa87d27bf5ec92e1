"""SARIF, JUnit and GitHub annotations."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from report_fakes import CANNOT_TELL, FINDINGS, HEALTHY, HOSTILE, NASTY, FakeRecording

from hypocenter.nouns import Diagnosis
from hypocenter.report.formats import github, junit, sarif

BAD = Diagnosis(status="findings", findings=(HOSTILE,), notes=(NASTY,))


def test_sarif_has_one_result_per_finding_at_its_line() -> None:
    (run,) = json.loads(sarif.render(FakeRecording(), FINDINGS))["runs"]

    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [
        ("HC101", "error"),
        ("HC301", "warning"),
        ("HC900", "note"),
    ]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "modeling_t5.py"}, "region": {"startLine": 310}}


@pytest.mark.parametrize(("diagnosis", "judged"), [(HEALTHY, True), (FINDINGS, True), (CANNOT_TELL, False)])
def test_sarif_of_a_run_that_cannot_be_judged_is_no_clean_run(diagnosis: Diagnosis, judged: bool) -> None:
    (run,) = json.loads(sarif.render(FakeRecording(), diagnosis))["runs"]

    assert run["invocations"][0]["executionSuccessful"] is judged


@pytest.mark.parametrize(
    ("diagnosis", "counts"), [(HEALTHY, ("1", "0", "0")), (FINDINGS, ("3", "2", "0")), (CANNOT_TELL, ("1", "0", "1"))]
)
def test_junit_counts(diagnosis: Diagnosis, counts: tuple[str, str, str]) -> None:
    suite = ElementTree.fromstring(junit.render(FakeRecording(), diagnosis).encode()).find("testsuite")

    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == counts


def test_hostile_names_stay_well_formed() -> None:
    ElementTree.fromstring(junit.render(FakeRecording(), BAD).encode())
    json.loads(sarif.render(FakeRecording(), BAD))
    lines = github.render(FakeRecording(), BAD).splitlines()

    assert len(lines) == 2
    assert all(line.startswith("::") for line in lines)


def test_github_annotation_points_at_file_and_line() -> None:
    first = github.render(FakeRecording(), FINDINGS).splitlines()[0]

    assert first.startswith("::error file=modeling_t5.py,line=310,title=HC101%3A the product overflowed float16::")
