"""On dumps that msprobe makes now of programs with a planted fault, `check` and `diff` name the culprit.

What msprobe's own analysis says of them stands beside our answers in docs/importing-peers.md, as `python -m
bench.importing peers --write` found it. Needs a Python with msprobe: MSPROBE_PYTHON.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.importing import peers
from bench.importing.truths import LEVELS, LEVELS_OF_PAIRS, OVERFLOWS, PAIRS, Truth

has_msprobe = pytest.mark.skipif(
    "MSPROBE_PYTHON" not in os.environ and importlib.util.find_spec("msprobe") is None,
    reason="there is no msprobe: MSPROBE_PYTHON",
)
FRESH = [(truth, "mix") for truth in OVERFLOWS] + [(truth, "L0") for truth in PAIRS]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> peers.Runs:
    out = tmp_path_factory.mktemp("peers")
    names = [f"{truth.case}/{level}" for truth, level in FRESH]
    peers.ask_msprobe(out / "msprobe", "--dumps-only", "--only", "good/L0", *names)
    return peers.Runs(out / "msprobe" / "dumps", out / "runs")


@has_msprobe
@pytest.mark.night
@pytest.mark.parametrize(("truth", "level"), FRESH, ids=lambda value: getattr(value, "case", value))
def test_the_culprit_is_named_from_the_tools_own_dump(truth: Truth, level: str, runs: peers.Runs) -> None:
    answer = peers.diff(runs, truth, level) if truth in PAIRS else peers.check(runs.of(truth.case, level), truth)

    assert answer.verdict == "right", answer.text


def test_the_page_shows_both_answers_of_every_case() -> None:
    page = peers.PAGE.read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if re.match(r"\| .* \| (L0|L1|mix) \|", line)]
    marks = set(peers.MARKS.values())

    assert len(rows) == len(OVERFLOWS) * len(LEVELS) + len(PAIRS) * len(LEVELS_OF_PAIRS)
    assert all(row[2] in marks and row[-2] in marks for row in rows)
    assert not any(row[-2] == peers.MARKS["wrong"] for row in rows)
    beaten = [row for row in rows if row[2] != peers.MARKS["right"] and row[-2] == peers.MARKS["right"]]
    assert len(beaten) >= 15
