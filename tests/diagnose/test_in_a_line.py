"""A diagnosis in one line."""

from __future__ import annotations

import pytest

from hypocenter.diagnose.in_a_line import in_a_line
from hypocenter.nouns import Diagnosis, Finding, Source, replace

NOTE = Finding(code="HC900", kind="environment", severity="note", title="a note", step=1)
BAD = replace(NOTE, code="HC102", severity="error", title="log of 0", source=Source(file="/a/b/train.py", line=7))


@pytest.mark.parametrize(
    ("diagnosis", "line"),
    [
        (Diagnosis(status="healthy", n_steps=1200, findings=(NOTE,)), "healthy in 1,200 steps"),
        (Diagnosis(status="cannot-tell", why=("x",), n_steps=1), "cannot tell whether all is well in 1 step"),
        (Diagnosis(status="findings", findings=(NOTE, BAD)), "error[HC102]: log of 0 (train.py:7, step 1)"),
        (
            Diagnosis(status="findings", findings=(replace(BAD, source=None), BAD, BAD)),
            "error[HC102]: log of 0 (step 1), and 2 more",
        ),
    ],
)
def test_the_first_finding_or_the_verdict(diagnosis: Diagnosis, line: str) -> None:
    assert in_a_line(diagnosis) == line
