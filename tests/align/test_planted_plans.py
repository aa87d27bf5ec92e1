"""A few of the planted plans; all of them are in docs/align-cases.md (python -m bench.align)."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_plans import CASES, Planted, plan
from started import start

from hypocenter.align.engine import How, align

_HERE = ("batches in another order", "beta2", "loss in bfloat16")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.mark.parametrize("case", [one for one in CASES if one.name.startswith(_HERE)], ids=lambda case: case.name)
def test_stops_where_and_for_what_was_planted(case: Planted, shared: Path) -> None:
    found = align(plan(case, shared), How(start=start, recordings=shared / "runs"))

    assert (found.status, found.stage) == ("stopped", case.stage), found.sentence
    failed = next(one for one in found.stages if one.verdict == "failed")
    assert failed.cause == case.cause
    told = " ".join([failed.sentence, failed.site or "", *failed.why])
    assert any(word in told for word in case.words), told
    assert all(one.verdict == "not-run" for one in found.stages[failed.stage + 1 :])
