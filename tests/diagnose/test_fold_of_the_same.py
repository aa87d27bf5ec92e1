"""What is first noted and then known for sure is one finding; so is a schedule that is over because it steps twice."""

from __future__ import annotations

import pytest

from hypocenter.diagnose.fold import fold
from hypocenter.nouns import Finding, Remedy, replace
from tests.diagnose.recordings import records_of

NOTED = Finding(code="HC263", kind="config", severity="note", title="bn is frozen", step=20, rank=0, site="bn")
KNOWN = replace(NOTED, severity="warning")
TWICE = Finding(
    code="HC214", kind="config", severity="warning", title="StepLR steps twice for each update", step=0, rank=0
)
OVER = replace(TWICE, severity="note", title="StepLR goes on past its end", step=31)
OLD = Finding(
    code="HC232", kind="desync", severity="warning", title="the gradient of a still holds that of the step before",
    step=1, rank=0, site="a", remedy=Remedy(action="zero-grad", text="call zero_grad()"),
)  # fmt: skip
LATER = replace(
    OLD, title="the optimizer steps 4 times", site="", remedy=Remedy(action="step-with-zero-grad", text="step less")
)


@pytest.mark.parametrize(("less", "more"), [(NOTED, KNOWN), (OVER, TWICE), (OLD, LATER)])
@pytest.mark.parametrize("is_first", [True, False])
def test_they_are_one_finding(less: Finding, more: Finding, is_first: bool) -> None:
    (only,) = fold([], [less, more] if is_first else [more, less], records_of({}))

    assert (only.finding.title, only.finding.severity) == (more.title, "warning")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (replace(NOTED, rank=1), KNOWN),
        (replace(NOTED, step=30), KNOWN),
        (replace(NOTED, site="other"), KNOWN),
        (replace(OVER, title="CosineAnnealingLR goes on past its end"), TWICE),
        (OVER, replace(TWICE, title="StepLR sets the learning rate of an optimizer that is not used")),
        (replace(OLD, rank=1), LATER),
    ],
)
def test_of_another_rank_place_step_or_schedule_they_are_two(one: Finding, other: Finding) -> None:
    assert len(fold([], [one, other], records_of({}))) == 2
