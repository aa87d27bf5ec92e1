"""Every code stands for one rule: of one rank, or of a group of ranks."""

from __future__ import annotations

from hypocenter.detect.engine import rules
from hypocenter.detect.group_engine import group_rules


def test_no_code_stands_for_two_rules() -> None:
    assert not rules().keys() & group_rules().keys()
