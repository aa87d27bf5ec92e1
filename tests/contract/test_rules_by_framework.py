"""Each rule says where it cannot fire; where it says nothing, a program of that framework makes it fire in a test."""

from __future__ import annotations

import re
from pathlib import Path

from hypocenter.detect.engine import FRAMEWORKS, rules

TESTS = Path(__file__).resolve().parents[1] / "mindspore"


def test_reasons_are_of_known_frameworks():
    assert all(set(entry.not_in) <= set(FRAMEWORKS) for entry in rules().values())


def test_every_rule_that_can_fire_on_mindspore_does_so_in_a_test():
    source = "".join(path.read_text() for path in sorted(TESTS.glob("test_rules_*.py")))
    shown = {f"HC{number}" for number in re.findall(r"def test_hc(\d+)_", source)}

    assert shown == {code for code, entry in rules().items() if "mindspore" not in entry.not_in}
    assert len(shown) >= 25
