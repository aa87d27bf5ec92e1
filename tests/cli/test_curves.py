"""`hypocenter curves` as a person uses it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commanded import log
from recordings import run


def test_a_departure_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    base, bad, again = log(tmp_path / "a"), log(tmp_path / "b", 0.1, 1), log(tmp_path / "c", 0, 2)

    said = run("curves", base, bad, "--noise", again, "--plot", tmp_path / "out.svg")

    assert said.code == 1, said.err
    first = said.out.partition("\n")[0]
    assert first.startswith("departed at step 2")
    assert 235 <= int(first.split("step ")[1].split(":")[0]) <= 245
    assert "above the baseline's" in first
    assert "difference" in said.out
    assert ElementTree.parse(tmp_path / "out.svg").getroot().tag.endswith("svg")


def test_a_good_run_is_accepted_and_json_says_so(tmp_path: Path) -> None:
    base, good, again = log(tmp_path / "a"), log(tmp_path / "b", 0, 1), log(tmp_path / "c", 0, 2)

    said = run("curves", base, good, "--noise", again, "--json")

    found = json.loads(said.out)
    assert said.code == 0, said.err
    assert (found["schema"], found["status"], found["floor_source"]) == ("hypocenter.curves/1", "accepted", "repeats")
    assert found["baseline"]["kind"] == "mindformers"


def test_cannot_tell_is_5_and_no_log_is_4(tmp_path: Path) -> None:
    base, short = log(tmp_path / "a"), log(tmp_path / "b", n=10)
    (tmp_path / "empty").write_text("", encoding="utf-8")

    assert run("curves", base, short).code == 5
    said = run("curves", base, tmp_path / "empty")

    assert said.code == 4
    assert said.err.startswith("error[no-curve]: nobody knows what kind of log this is")
    assert run("curves", base, tmp_path / "nowhere").code == 4


@pytest.mark.parametrize("limit", ["loss", "loss=x", "loss=-1", "speed=3", "loss=nan"])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: str) -> None:
    base = log(tmp_path / "a")

    said = run("curves", base, base, "--limit", limit)

    assert said.code == 2
    assert "error[bad-option]" in said.err


def test_a_chart_is_not_overwritten(tmp_path: Path) -> None:
    base = log(tmp_path / "a")
    (tmp_path / "out.svg").write_text("mine", encoding="utf-8")

    said = run("curves", base, base, "--plot", tmp_path / "out.svg")

    assert said.code == 2
    assert (tmp_path / "out.svg").read_text(encoding="utf-8") == "mine"


def test_diff_of_logs_compares_their_curves(tmp_path: Path) -> None:
    base, bad, again = log(tmp_path / "a"), log(tmp_path / "b", 0.1, 1), log(tmp_path / "c", 0, 2)

    said = run("diff", base, bad, "--noise", again)
    refused = run("diff", base, bad, "--format", "junit")

    assert said.code == 1, said.err
    assert said.out == run("curves", base, bad, "--noise", again).out
    assert refused.code == 2
    assert "hypocenter curves" in refused.err
