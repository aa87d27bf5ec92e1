"""A forecast that came true belongs to the failure; the same one of several ranks is one finding."""

from __future__ import annotations

from hypocenter.diagnose.fold import fold
from hypocenter.nouns import Finding, StepRecord, replace
from tests.diagnose.recordings import records_of

FORECAST = Finding(
    code="HC205", kind="overflow-risk", severity="warning", title="Linear overflows float16 in about 200 steps",
    step=391, phase="forward", site="head", port="out[0]", cause="format-overflow",
    why=("|max| is 9,656", "due between 522 and 1604"),
)  # fmt: skip
OVERFLOW = Finding(code="HC104", kind="nonfinite", severity="error", title="Linear made +inf", step=640, site="head")
RECORDS = {(rank, step): StepRecord(step=step, loss=1.0) for rank in range(2) for step in (391, 640)}


def test_ranks_share_one_forecast() -> None:
    folded = fold([], [FORECAST, replace(FORECAST, rank=1, step=393)], records_of(RECORDS))

    assert [f.finding.code for f in folded] == ["HC205"]
    assert folded[0].finding.count == 2


def test_forecasts_of_different_sites_stay_apart() -> None:
    folded = fold([], [FORECAST, replace(FORECAST, site="embed", rank=1)], records_of(RECORDS))

    assert sorted(f.finding.site or "" for f in folded) == ["embed", "head"]


def test_a_forecast_alone_is_a_warning() -> None:
    (only,) = fold([], [FORECAST], records_of(RECORDS))

    assert only.finding.severity == "warning"
    assert only.finding.why == FORECAST.why


def test_an_overflow_elsewhere_is_another_matter() -> None:
    folded = fold([], [FORECAST, replace(OVERFLOW, site="embed")], records_of(RECORDS))

    assert [f.finding.code for f in folded] == ["HC205", "HC104"]


def test_a_forecast_that_came_true_is_told_with_the_failure() -> None:
    (only,) = fold([], [FORECAST, OVERFLOW], records_of(RECORDS))

    assert (only.finding.code, only.finding.step) == ("HC104", 640)
    assert only.finding.why == ("forecast at step 391: due between 522 and 1604",)
