"""The engine: registration, broken rules, history, and what only follows from something earlier."""

from __future__ import annotations

import pytest

from hypocenter.detect import engine
from hypocenter.detect.engine import Engine, Rule, rules
from hypocenter.diagnose.consequences import Episode, episode_of, episodes
from hypocenter.errors import UnknownNameError
from hypocenter.nouns import Finding, Reading, StepRecord, Summary


def a_rule(check, code="T1"):
    return Rule(code=code, kind="nonfinite", severity="note", reads=("all",), check=check)


def a_finding(window):
    return Finding(code="T1", kind="nonfinite", severity="note", title="t", step=window.step, rank=window.rank)


@pytest.fixture
def shelf():
    """The catalogue's list of broken files, as it was before the test."""
    before = list(engine.CATALOGUE.broken)
    yield engine.CATALOGUE.broken
    engine.CATALOGUE.broken[:] = before


def test_a_rule_that_raises_is_listed_and_not_asked_again(shelf):
    asked = []

    def fails(window):
        asked.append(window.step)
        raise ZeroDivisionError("of a stranger")

    checker = Engine({"T1": a_rule(fails), "T2": a_rule(lambda w: iter([a_finding(w)]), "T2")})

    found = [checker.feed(0, step) for step in range(3)]

    assert asked == [0]
    assert [len(f) for f in found] == [1, 1, 1]
    assert [(b.name, b.error) for b in shelf if b.name == "T1"] == [("T1", "ZeroDivisionError: of a stranger")]


def test_history_is_of_the_same_rank_and_of_earlier_steps_only():
    seen = []

    def looks(window):
        seen.append((window.rank, window.step, [r.step for r in window.history.records]))
        return iter(())

    checker = Engine({"T1": a_rule(looks)})

    for rank, step in ((0, 0), (1, 0), (0, 1), (1, 1)):
        checker.feed(rank, step, StepRecord(step=step))

    assert seen == [(0, 0, []), (1, 0, []), (0, 1, [0]), (1, 1, [0])]


def test_a_site_is_learned_as_healthy_only_from_healthy_steps():
    learned = []

    def looks(window):
        learned.append(set(window.history.healthy_nonfinite))
        return iter(())

    checker = Engine({"T1": a_rule(looks)})
    bad = Reading(
        step=0, microbatch=0, phase="forward", site="m", port="out[0]", order=0, summary=Summary(n=1, n_nan=1)
    )

    checker.feed(0, 0, StepRecord(step=0, loss=float("nan")), [bad])
    checker.feed(0, 1, StepRecord(step=1, loss=1.0), [bad])
    checker.feed(0, 2, StepRecord(step=2, loss=1.0), [])

    assert learned == [set(), set(), {("m", "out[0]")}]


def test_a_rule_of_an_unknown_kind_or_a_taken_code_is_refused():
    with pytest.raises(UnknownNameError, match="'strange' is not a kind"):
        engine.rule("T9", "strange", severity="note")
    with pytest.raises(UnknownNameError, match="T9 reads"):
        engine.rule("T9", "data", severity="note", reads=("everything",))  # type: ignore[arg-type]
    rules()
    with pytest.raises(UnknownNameError, match="registered twice"):
        engine.rule("HC101", "nonfinite", severity="error")(lambda window: iter(()))


def test_a_plugin_file_brings_a_rule_and_a_broken_one_is_listed(tmp_path, shelf):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(
        '"""A message."""\n'
        "from hypocenter.detect.engine import rule\n"
        "@rule('TEST1', 'data', severity='note')\n"
        "def check(window):\n"
        "    return iter(())\n"
    )
    bad.write_text("import a_package_that_is_not_there\n")

    try:
        found = rules((str(good), str(bad), str(tmp_path / "missing.py")))

        assert found["TEST1"].manual.message == "A message."
        assert [b.name for b in shelf] == [str(bad), str(tmp_path / "missing.py")]
        assert "a_package_that_is_not_there" in shelf[0].error
    finally:
        engine.CATALOGUE._entries.pop("TEST1", None)


def test_a_plugin_that_breaks_half_way_leaves_nothing_behind(tmp_path, shelf):
    half = tmp_path / "half.py"
    half.write_text(
        "from hypocenter.detect.engine import rule\n"
        "rule('TEST2', 'data', severity='note')(lambda window: iter(()))\n"
        "raise RuntimeError('half way')\n"
    )

    found = rules((str(half),))

    assert "TEST2" not in found
    assert shelf[-1].error == "RuntimeError: half way"


def test_consecutive_sick_steps_are_one_episode_and_a_healthy_step_ends_it():
    found = episodes(range(20), [3, 4, 5, 9])

    assert found == (Episode(first=3, last=5), Episode(first=9, last=9))
    assert episode_of(4, found) == found[0]
    assert episode_of(6, found) is None


def test_steps_that_were_not_recorded_do_not_end_an_episode():
    assert episodes([0, 10, 20, 30], [10, 20]) == (Episode(first=10, last=20),)
    assert episodes([], []) == ()
