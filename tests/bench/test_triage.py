"""A handful of drills of each kind on two forked ranks."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.triage.__main__ import drill
from bench.triage.drills import KINDS, plan
from bench.triage.table import FRAME, table, write

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads


@pytest.mark.slow
def test_drills_end_with_the_right_verdict():
    results = drill(2, (), 2, seed=3)

    assert len(results) == 2 * len(KINDS)
    assert [r for r in results if not r["is_right"]] == []


def test_drills_are_drawn_alike_on_all_ranks():
    assert plan("persistent", 3, 0, 2) == plan("persistent", 3, 0, 2) != plan("persistent", 4, 0, 2)


def test_the_page_keeps_what_is_around_the_table(tmp_path):
    page = tmp_path / "triage.md"
    page.write_text("before\n<!-- drills -->\nold\n<!-- end of drills -->\nafter\n", encoding="utf-8")
    result = {
        "plan": {"kind": "healthy"}, "code": "", "rank": None, "step": None, "why": [], "is_right": True,
        "has_effect": True,
    }  # fmt: skip

    write(page, table([result]), 2, 1)

    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| healthy | 1 | 0 | 0 | 0 | 0 | 1 | 1 |" in text
    assert "old" not in text
    assert FRAME.search(text)
