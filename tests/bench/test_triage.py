"""A handful of drills of each kind on two forked ranks."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.triage.__main__ import drill
from bench.triage.drills import KINDS, plan
from bench.triage.table import FRAME, judged, table, write
from hypocenter.diagnose import diagnosis
from hypocenter.nouns import Finding
from hypocenter.record import reader

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads


@pytest.mark.night
def test_drills_end_with_the_right_verdict():
    results = drill(2, (), 2, seed=3)

    assert len(results) == 2 * len(KINDS)
    assert [r for r in results if not r["is_right"]] == []


def test_drills_are_drawn_alike_on_all_ranks():
    assert plan("persistent", 3, 0, 2) == plan("persistent", 3, 0, 2) != plan("persistent", 4, 0, 2)


@pytest.mark.parametrize(
    ("kind", "said", "is_right"),
    [
        ("transient-unasked", [("HC341", 1, 5)], True),
        ("transient-unasked", [("HC341", 0, 5)], False),  # another rank
        ("transient-unasked", [("HC341", 1, 6)], False),  # another step
        ("transient-unasked", [("HC341", 1, 5), ("HC343", 0, 6)], False),  # and one that is not so
        ("transient-unasked", [], False),
        ("healthy", [], True),
        ("healthy", [("HC342", 1, 5)], False),
        ("software", [("HC102", 0, 5)], True),  # no verdict on hardware
    ],
)
def test_every_verdict_of_a_drill_has_to_be_so(tmp_path, monkeypatch, kind, said, is_right):
    findings = tuple(
        Finding(code=code, kind="hardware", severity="error", title=code, step=step, rank=rank)
        for code, rank, step in said
    )
    monkeypatch.setattr(reader, "open_run", lambda directory: directory)
    monkeypatch.setattr(diagnosis, "diagnose", lambda run: diagnosis.Diagnosis(findings=findings))

    drilled = replace(plan(kind, 0, 0, 2), rank=1, step=5)

    assert judged(drilled, tmp_path)["is_right"] == is_right


def test_the_page_keeps_what_is_around_the_table(tmp_path):
    page = tmp_path / "triage.md"
    page.write_text("before\n<!-- drills -->\nold\n<!-- end of drills -->\nafter\n", encoding="utf-8")
    result = {
        "plan": {"kind": "healthy"}, "code": "", "rank": None, "step": None, "why": [], "is_right": True,
        "has_effect": True,
    }  # fmt: skip

    write(page, table([result]), n_ranks=2, n_drills=1, seed=5)

    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| healthy | 1 | 0 | 0 | 0 | 0 | 1 | 1 |" in text
    assert "--drills 1 --ranks 2 --seed 5" in text
    assert "old" not in text
    assert FRAME.search(text)
