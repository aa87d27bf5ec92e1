"""A broken law is told under the finding that explains it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypocenter.diagnose.diagnosis import with_laws
from hypocenter.diagnose.group import Folded
from hypocenter.nouns import Finding


def found(code: str, kind: str, step: int, param: str | None = None, severity: str = "warning") -> Folded:
    finding = Finding(
        code=code, kind=kind, severity=severity, title=f"{code} at {step}", step=step, rank=0, phase="grad",  # type: ignore[arg-type]
        site=param or "", port="grad", param=param, confidence="proven",
    )  # fmt: skip
    return Folded(finding=finding, is_located=True)


def told(*findings: Folded) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(f.finding.code, f.finding.step, f.finding.then) for f in with_laws(findings)]


def test_a_wrong_sum_explains_the_gradient_of_its_step() -> None:
    assert told(found("HC311", "comm", 6, severity="error"), found("HC308", "desync", 6, "a")) == [
        ("HC311", 6, ("step 6: HC308 at 6",))
    ]


def test_replicas_that_are_seen_apart_later_began_at_the_law() -> None:
    later = found("HC301", "desync", 13, "a", "error")

    (one,) = with_laws([found("HC308", "desync", 12, "a"), later])

    assert (one.finding.code, one.finding.step) == ("HC301", 12)
    assert one.finding.why == ("it began at step 12: HC308 at 12",)


@pytest.mark.parametrize(
    ("cause", "now"), [("replica-drift", "missing-gradient-sync"), ("init-mismatch", "init-mismatch")]
)
def test_replicas_that_went_apart_after_their_gradients_are_told_why(cause: str, now: str) -> None:
    split, later = found("HC309", "desync", 12, "a"), found("HC301", "desync", 16, "b", "error")
    split = replace(split, finding=replace(split.finding, cause="missing-gradient-sync", confidence="likely"))

    (one,) = with_laws([split, replace(later, finding=replace(later.finding, cause=cause))])

    assert (one.finding.code, one.finding.step, one.finding.cause) == ("HC301", 12, now)
    assert (one.finding.remedy is not None) == (cause != now)


def test_of_two_laws_of_one_parameter_the_first_says_it() -> None:
    assert told(found("HC233", "stagnation", 9, "a"), found("HC232", "desync", 9, "a")) == [
        ("HC232", 9, ("step 9: HC233 at 9",))
    ]


def test_a_lost_microbatch_explains_the_gradient_of_its_parameter() -> None:
    assert told(found("HC232", "desync", 9, "a"), found("HC332", "stagnation", 9, "a")) == [
        ("HC332", 9, ("step 9: HC232 at 9",))
    ]


def test_what_is_not_of_the_same_stands_by_itself() -> None:
    alone = [
        found("HC232", "desync", 9, "a"), found("HC233", "stagnation", 9, "b"),
        found("HC301", "desync", 40, "a", "error"), found("HC205", "overflow-risk", 9, "a"),
    ]  # fmt: skip

    assert [f[:2] for f in told(*alone)] == [("HC232", 9), ("HC233", 9), ("HC301", 40), ("HC205", 9)]
