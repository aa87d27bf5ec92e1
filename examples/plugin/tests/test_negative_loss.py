"""The rule on made-up steps: where it must fire, and near misses at which it must stay silent."""

from __future__ import annotations

import hypocenter_example.negative_loss  # importing it registers the rule
import pytest

from hypocenter.detect.engine import Engine, rules
from hypocenter.nouns import Finding, StepRecord


def findings(losses: list[float | None]) -> list[Finding]:
    """What the rule says about a run with these losses, one a step."""
    engine = Engine({"EX1": rules()["EX1"]})
    steps = [StepRecord(step=step, loss=loss) for step, loss in enumerate(losses)]
    return [found for record in steps for found in engine.feed(0, record.step, record)]


def test_it_fires_once_where_the_loss_becomes_negative() -> None:
    (found,) = findings([2.0, 1.0, -0.5, -0.7])

    assert (found.code, found.step, found.actual) == ("EX1", 2, -0.5)
    assert found.limit == hypocenter_example.negative_loss.LOWEST


@pytest.mark.parametrize("losses", [[1.0, 0.0], [1.0, -1e-7], [None], [float("nan")], []])
def test_near_misses_stay_silent(losses: list[float | None]) -> None:
    assert findings(losses) == []


def test_its_manual_page_is_whole() -> None:
    assert rules()["EX1"].manual.missing == ()
