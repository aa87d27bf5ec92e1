"""align.groups: settings of two optimizers, and what a format that rounds them makes of equal ones."""

from __future__ import annotations

import numpy as np
import pytest

from hypocenter.align.groups import group_differences
from hypocenter.compare.comparison import Matching, Pair, Spot
from hypocenter.record.facts_file import Facts, GroupFacts, OptimizerFacts


class Recorded:
    """As much of a recording as is asked for."""

    def __init__(self, name: str, **options: object) -> None:
        group = GroupFacts(parameters=(name,), options=options)
        self._facts = Facts(optimizers=(OptimizerFacts(kind="AdamW", groups=(group,)),))

    def facts(self) -> Facts:
        return self._facts


def _weight(name: str) -> Spot:
    return Spot(phase="param", site=name, port="value")


PAIR = Matching(pairs=(Pair(baseline=(_weight("norm.weight"),), candidate=(_weight("norm.gamma"),), by="renamed"),))


def _apart(mine: dict[str, object], other: dict[str, object]) -> list[str]:
    runs = Recorded("norm.weight", **mine), Recorded("norm.gamma", **other)
    return [one.option for one in group_differences(*runs, PAIR)]  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.1, 0.95, 1e-8])
def test_a_setting_kept_in_float32_is_the_same(value: float) -> None:
    assert _apart({"eps": value}, {"eps": float(np.float32(value))}) == []
    assert _apart({"eps": value}, {"eps": value * 1.001}) == ["eps"]


def test_settings_of_several_numbers_are_compared_one_by_one() -> None:
    rounded = [float(np.float32(beta)) for beta in (0.9, 0.95)]

    assert _apart({"betas": (0.9, 0.95)}, {"betas": rounded}) == []
    assert _apart({"betas": (0.9, 0.95)}, {"betas": (0.9, 0.999)}) == ["betas"]
    assert _apart({"betas": (0.9, 0.95)}, {"betas": (0.9,)}) == ["betas"]
