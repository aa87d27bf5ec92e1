"""What to do is said where it is known: each warning on a schedule, a parameter in no optimizer, gradients piled up."""

from __future__ import annotations

import pytest

from tests.detect.test_cases import BOOK, fired

WITHOUT = {"missing", "factor", "a micro-batch", "other", "another"}  # HC232: what made it so is not known
CASES = [
    (code, case)
    for code in ("HC214", "HC232", "HC233")
    for case in BOOK[code]["case"]
    if code != "HC232" or not WITHOUT.intersection(row.get("module") for row in case["reading"])
    if code != "HC233" or any(row.get("port") == "not_stepped" for row in case["reading"])
]


@pytest.mark.parametrize(("code", "case"), CASES, ids=[f"{code}: {case['name']}" for code, case in CASES])
def test_a_warning_says_what_to_do(code: str, case: dict) -> None:
    assert all(found.remedy is not None for found in fired(code, case) if found.severity == "warning")


@pytest.mark.parametrize(
    ("step", "call", "said"),
    [
        (1, 0, "at no step before was it looked at: it may be so from the start"),
        (8, 4, "it held at step 4"),
        (0, 0, None),
    ],
)
def test_a_relation_says_since_when_it_may_be_broken(step: int, call: int, said: str | None) -> None:
    case = next(case for case in BOOK["HC242"]["case"] if case["fires_at"])

    (found,) = fired("HC242", {"reading": [{**case["reading"][0], "step": step, "call": call}]})

    assert found.step == step
    assert [why for why in found.why if "start" in why or "held" in why] == [said] * (said is not None)
