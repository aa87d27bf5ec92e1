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


def scaled(case: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records and readings of `scaled`: each entry is `n` updates; the scale is halved after each skipped one.

    Keys: n, skipped, scale (else it goes on from before), scales (one for each), culprit, largest (a gradient of the
    culprit, as the scaler saw it), grad_norm.
    """
    records: list[dict[str, Any]] = []
    readings: list[dict[str, Any]] = []
    scale = 65536.0
    for part in case.get("scaled", []):
        scale = part.get("scale", scale)
        for i in range(part.get("n", len(part.get("scales", [])) or 1)):
            scale = part["scales"][i] if "scales" in part else scale
            step, skipped = len(records), part.get("skipped", False)
            known = {"loss": 1.0, "grad_norm": part.get("grad_norm", 1.0), "n_bad_grads": int(skipped)}
            records.append({"step": step, "loss_scale": scale, "skipped": skipped, **known})
            row = {"step": step, "phase": "scaler", "order": 1}
            readings.append(row | {"site": "loss_scale", "port": "value", "summary": {"n": 1, "sum": scale}})
            if "culprit" in part and skipped:
                readings.append(row | {"site": part["culprit"], "port": "culprit", "summary": {"n": 1, "n_nan": 1}})
            if "largest" in part:
                seen = {"n": 8, "absmax": part["largest"] * scale}
                readings.append(row | {"site": part["culprit"], "port": "scaled_grad", "summary": seen})
            scale *= 0.5 if skipped else 1.0
    return records, readings


def fired(code: str, case: dict[str, Any]) -> list[Finding]:
    """Feed a case's rows, step by step, to one rule."""
    made_records, made_readings = scaled(case)
    records = {r["step"]: msgspec.convert(r, StepRecord) for r in [*case.get("record", []), *made_records]}
    common = {"microbatch": 0, "phase": "forward", "order": 0}
    readings = [msgspec.convert(common | row, Reading) for row in [*case.get("reading", []), *made_readings]]
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
