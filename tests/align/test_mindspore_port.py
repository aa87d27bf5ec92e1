"""A torch GPT and its MindSpore port by one plan, right and with a few of the planted differences.

All of them are in docs/align-mindspore.md (python -m bench.align mindspore). MINDSPORE_PYTHON names the interpreter.
"""

from __future__ import annotations

import pytest
from planted_port import CASES, Planted, failed_stage, is_cause_right, is_site_right, plan
from site_pairs import forward_sites
from started import start, start_beside
from two_frameworks import PYTHON, Pair, prepare

from hypocenter.align.engine import How, align

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="no MindSpore here, and MINDSPORE_PYTHON names none"),
    pytest.mark.long,
]
_HERE = ("eps of a norm", "labels")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return prepare(tmp_path_factory.mktemp("port"))


@pytest.mark.night  # by day its plan is gone through as far as what is planted, and align.md's pair of torch to the end
def test_the_right_port_is_aligned_within_the_measured_floor(pair: Pair) -> None:
    short = plan(CASES[0], pair, pair.folder, frozen_steps=8, long_steps=20)

    found = align(short, How(start=start_beside, recordings=pair.folder / "runs"))

    assert found.status == "aligned", found.sentence
    assert all(stage.verdict == "passed" for stage in found.stages[:8])
    sites = forward_sites(pair.folder, found)
    assert sites.of_baseline > 50
    assert sites.share >= 0.98
    forward, frozen = found.stages[2].figures, found.stages[5].figures["curves"]
    assert 0 < forward["error"] <= 4 * forward["floor"]
    assert len(found.stages[3].figures["local_norms"]) == 29
    assert [curve["outliers"] for curve in frozen] == [[], []]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(one, id=one.name, marks=[] if one.name.startswith("labels") else pytest.mark.night)
        for one in CASES
        if one.name.startswith(_HERE)
    ],
)
def test_what_is_planted_in_the_port_is_found(case: Planted, pair: Pair) -> None:
    how = How(start=start if case.name.startswith("labels") else start_beside, recordings=pair.folder / "runs")

    found = align(plan(case, pair, pair.folder), how)

    assert found.status == "stopped", found.sentence
    failed = failed_stage(found)
    assert is_site_right(case, found), (failed, case)
    assert is_cause_right(case, found), (failed, case)
