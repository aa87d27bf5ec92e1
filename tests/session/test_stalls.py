"""A line while training waits."""

from __future__ import annotations

import sys
import time

import pytest

from hypocenter.session.stalls import stalling


def test_a_wait_is_told_when_it_is_long_and_how_long_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    with stalling("step 3 is done again", after_s=0.0):
        time.sleep(0.2)

    assert capsys.readouterr().err.splitlines() == [
        "hypocenter: training waits: step 3 is done again",
        "hypocenter: training goes on after 0 s",
    ]


@pytest.mark.parametrize("options", [{"after_s": 60.0}, {"after_s": 0.0, "is_told": False}])
def test_a_short_wait_and_one_that_another_rank_tells_of_are_not_told(
    options: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    with stalling("step 3 is done again", **options):  # type: ignore[arg-type]
        pass

    assert capsys.readouterr().err == ""


def test_what_fails_in_a_wait_fails_as_it_would(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), stalling("step 3 is done again"):
        raise KeyError("x")

    assert capsys.readouterr().err == ""


def test_a_program_without_stderr_finds_nothing_of_ours_on_its_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with stalling("step 3 is done again", after_s=0.0):
        time.sleep(0.2)

    assert capsys.readouterr().out == ""
