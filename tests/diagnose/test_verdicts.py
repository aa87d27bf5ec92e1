"""How a verdict is chosen among answers, and what a broken cause does: nothing."""

from __future__ import annotations

import pytest

from hypocenter.diagnose import verdicts
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.verdicts import Cause, cause, causes, judge
from hypocenter.errors import UnknownNameError
from hypocenter.manual import HEADINGS
from hypocenter.nouns import CAUSES


def answering(name, order, confidence):
    answer = None if confidence is None else Verdict(cause=name, confidence=confidence, title=name)
    return Cause(name=name, order=order, decide=lambda evidence: answer)


@pytest.fixture
def only(monkeypatch):
    """Replace the catalogue by a few causes."""

    def put(*entries):
        monkeypatch.setattr(verdicts, "causes", lambda plugins=(): {e.name: e for e in entries})

    return put


def test_the_best_supported_answer_wins_and_then_the_most_specific(only):
    only(
        answering("a", 1, "likely"), answering("b", 30, "proven"), answering("c", 20, "proven"), answering("d", 0, None)
    )

    assert judge(Evidence()).cause == "c"


def test_no_answer_is_unknown(only):
    only(answering("a", 1, None))

    assert judge(Evidence()).cause == "unknown"


def test_a_cause_that_raises_is_listed_and_the_others_answer(only):
    def fails(evidence):
        raise KeyError("of a stranger")

    broken = Cause(name="z", order=0, decide=fails)
    only(broken, answering("a", 1, "likely"))
    before = list(verdicts.CATALOGUE.broken)

    try:
        assert judge(Evidence()).cause == "a"
        assert judge(Evidence()).cause == "a"
        assert [b.error for b in verdicts.CATALOGUE.broken if b.name == "z"] == ["KeyError: 'of a stranger'"]
    finally:
        verdicts.CATALOGUE.broken[:] = before


def test_the_vocabulary_is_closed_but_for_names_with_a_dot():
    with pytest.raises(UnknownNameError) as error:
        cause("format-overflw", order=1)

    assert error.value.fix == "did you mean 'format-overflow'?"
    assert callable(cause("acme.bad-firmware", order=1))


def test_every_built_in_is_in_the_vocabulary_with_a_whole_page_and_its_own_order():
    found = {name: entry for name, entry in causes().items() if "." not in name}

    assert set(found) <= set(CAUSES)
    assert len(found) >= 21
    assert {name: entry.manual.missing for name, entry in found.items() if entry.manual.missing} == {}
    assert all([h for h, _ in entry.manual.sections] == list(HEADINGS) for entry in found.values())
    assert len({entry.order for entry in found.values()}) == len(found)
    assert verdicts.CATALOGUE.broken == []
