"""The judge itself: a right finding passes, each wrong part of one is said."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import casebook

CASE = next(case for case in casebook.faults(Path(__file__).parent) if case.id.startswith("a01"))
RIGHT: dict[str, Any] = {
    "step": 5,
    "microbatch": 0,
    "samples": [2],
    "site": "blocks.0.ffn.wo",
    "phase": "forward",
    "op": "aten.mm.default",
    "cause": "format-overflow",
    "confidence": "proven",
    "severity": "error",
    "source": {"file": "a01_ffn_output_overflow.py", "line": CASE.fault_line, "text": ""},
}


def outcome(*findings: dict[str, Any]) -> casebook.Outcome:
    diagnosis = {"status": "findings" if findings else "healthy", "findings": list(findings)}
    return casebook.Outcome(exit_code=0, diagnosis=diagnosis, stdout="", stderr="")


def test_right_finding() -> None:
    assert casebook.mismatches(CASE, outcome(RIGHT)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", 4),
        ("microbatch", 1),
        ("samples", []),
        ("site", "head"),
        ("phase", "backward"),
        ("op", None),
        ("cause", "unknown"),
        ("confidence", "likely"),
        ("source", {"file": "a01_ffn_output_overflow.py", "line": 1}),
        ("source", {"file": "torch/nn/functional.py", "line": CASE.fault_line}),
        ("source", None),
    ],
)
def test_each_wrong_part_is_said(key: str, value: Any) -> None:
    assert len(casebook.mismatches(CASE, outcome(RIGHT | {key: value}))) == 1


def test_only_the_first_finding_counts() -> None:
    assert casebook.mismatches(CASE, outcome(RIGHT | {"step": 0}, RIGHT)) != []


def test_others_count_where_a_finding_must_be_alone() -> None:
    alone = casebook.Case(id=CASE.id, script=CASE.script, answer=CASE.answer | {"is_alone": True})
    other = {"severity": "warning", "title": "something else"}

    assert casebook.mismatches(alone, outcome(RIGHT, other)) == ["also said: ['something else']"]
    assert casebook.mismatches(alone, outcome(RIGHT)) == []


def test_silence_is_wrong() -> None:
    assert casebook.mismatches(CASE, outcome()) == ["no finding, status healthy"]


def test_every_script_with_a_line_to_find_has_one_marker() -> None:
    for case in casebook.faults(Path(__file__).parent):
        if case.answer.get("check_line", True):
            assert case.script.read_text(encoding="utf-8").count(casebook.MARKER) == 1, case.id
