"""Every rule against its cases: at least one that fires and one near miss, with the number that separates them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hypocenter.detect.engine import Engine, rules
from hypocenter.nouns import Finding, Reading, StepRecord

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "cases"
BOOK = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))}
CASES = [(code, case) for code, book in BOOK.items() for case in book["case"]]


def fired(code: str, case: dict[str, Any]) -> list[Finding]:
    """Feed a case's rows, step by step, to one rule."""
    records = {r["step"]: msgspec.convert(r, StepRecord) for r in case.get("record", [])}
    common = {"microbatch": 0, "phase": "forward", "order": 0}
    readings = [msgspec.convert(common | row, Reading) for row in case.get("reading", [])]
    engine = Engine({code: rules()[code]})
    found: list[Finding] = []
    for step in sorted(set(records) | {r.step for r in readings}):
        found += engine.feed(0, step, records.get(step), [r for r in readings if r.step == step])
    return found


@pytest.mark.parametrize(("code", "case"), CASES, ids=[f"{code}: {case['name']}" for code, case in CASES])
def test_rule_fires_where_its_case_says(code, case):
    found = fired(code, case)

    assert [f.step for f in found] == case["fires_at"]
    if "severities" in case:
        assert [f.severity for f in found] == case["severities"]
    if "sites" in case:
        assert [f.site for f in found] == case["sites"]
    assert all(f.code == code and f.kind == rules()[code].kind for f in found)


@pytest.mark.parametrize("code", rules())
def test_every_rule_has_a_case_that_fires_and_one_that_does_not(code):
    outcomes = {bool(case["fires_at"]) for case in BOOK[code]["case"]}

    assert outcomes == {True, False}
    assert BOOK[code]["separates"]
    assert BOOK[code]["code"] == code
