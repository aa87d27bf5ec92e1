"""Every code stands for one rule: of one rank, or of a group of ranks."""

from __future__ import annotations

from hypocenter.detect.engine import rules
from hypocenter.detect.group_engine import group_rules
from hypocenter.detect.retired import RETIRED


def test_no_code_stands_for_two_rules() -> None:
    assert not rules().keys() & group_rules().keys()


def test_a_code_that_is_gone_has_a_successor_and_is_not_given_again() -> None:
    codes = rules().keys() | group_rules().keys()

    assert not RETIRED.keys() & codes
    assert set(RETIRED.values()) <= codes
