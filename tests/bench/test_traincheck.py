"""Silent errors of the study on TrainCheck: those of one process are found where a law can, and only there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.traincheck.cases import CASES, Case, said_of

ALONE = [case for case in CASES if case.n_ranks == 1]


@pytest.mark.slow
@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.issues)
def test_what_is_said(case: Case) -> None:
    found = said_of(case)

    assert bool(found) is case.is_found
    if found:
        first = min(found, key=lambda each: each.step)
        assert first.step == case.step
        assert not case.place or first.param in case.place
