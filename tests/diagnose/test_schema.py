"""diagnosis.json against the published schema; `tests/contract/surface.txt` freezes it."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.json_answer import published, to_json
from hypocenter.nouns import CAUSES, KINDS, Coords, Diagnosis, Finding, Remedy, Source

FULL = Finding(
    code="HC101", kind="nonfinite", severity="error", title="the product overflowed float16", step=12, rank=3,
    coords=Coords(tp=1, dp=0), phase="forward", site="encoder.block.1", port="out[0]", param="wo.weight", samples=(2,),
    op="aten.mul.Tensor", source=Source(file="modeling_t5.py", line=310), cause="format-overflow", limit=65504.0,
    actual=1.1e5, why=("a",), then=("b",), confidence="proven", chips=("+inf ×12",), bundle="rank-00003/bundles/x",
    remedy=Remedy(action="fp32-island", targets=("encoder.block.1",), verified=True, text="run it in float32"),
)  # fmt: skip


def validate(text: str) -> None:
    jsonschema.Draft202012Validator(published(Diagnosis)).validate(
        json.loads(text, parse_constant=lambda c: pytest.fail(c))
    )


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(published(Diagnosis))


@pytest.mark.parametrize("finding", [FULL, Finding(code="HC102", kind="data", severity="note", title="", step=0)])
def test_a_full_and_an_empty_finding_validate(finding):
    validate(to_json(Diagnosis(run="0412", status="findings", findings=(finding,), why=("w",), notes=("n",))))


def test_a_finding_holds_the_keys_of_the_contract():
    (finding,) = json.loads(to_json(Diagnosis(findings=(FULL,))))["findings"]

    assert {
        "code", "kind", "severity", "step", "microbatch", "rank", "coords", "phase", "site", "port", "param", "samples",
        "op", "source", "cause", "limit", "actual", "why", "then", "confidence", "remedy",
    } <= set(finding)  # fmt: skip
    assert list(finding) == [f.name for f in fields(Finding)]
    assert {"action", "targets", "verified", "text"} == set(finding["remedy"])


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_numbers_that_are_not_finite_are_strings(value, text):
    written = to_json(Diagnosis(findings=(replace(FULL, actual=value),)))

    validate(written)
    assert json.loads(written)["findings"][0]["actual"] == text


@pytest.mark.parametrize(
    "wrong",
    [{"cause": "made-up"}, {"kind": "made-up"}, {"severity": "fatal"}, {"confidence": "sure"}, {"phase": "middle"}],
    ids=str,
)
def test_a_word_outside_the_vocabulary_does_not_validate(wrong):
    with pytest.raises(jsonschema.ValidationError):
        validate(to_json(Diagnosis(findings=(replace(FULL, **wrong),))))


def test_a_third_party_cause_validates():
    validate(to_json(Diagnosis(findings=(replace(FULL, cause="acme.bad-firmware"),))))


numbers = st.none() | st.floats()
findings = st.builds(
    Finding, code=st.text(), kind=st.sampled_from(KINDS), severity=st.sampled_from(["error", "warning", "note"]),
    title=st.text(), step=st.integers(), cause=st.sampled_from(CAUSES), limit=numbers, actual=numbers,
    why=st.lists(st.text()).map(tuple), site=st.none() | st.text(),
    source=st.none() | st.builds(Source, file=st.text(), line=st.integers(), text=st.text()),
)  # fmt: skip


@given(st.lists(findings, max_size=3))
def test_whatever_is_found_validates_and_is_utf8(found):
    text = to_json(Diagnosis(run="r", status="findings", findings=tuple(found)))

    validate(text)
    assert text.encode().decode() == text


def test_lone_surrogates_of_a_source_line_do_not_break_the_file():
    text = to_json(Diagnosis(findings=(replace(FULL, title="caf\udce9"),)))

    text.encode()
    validate(text)
