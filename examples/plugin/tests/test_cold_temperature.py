"""The cause on made-up evidence: one that must be recognised, near misses that must not."""

from __future__ import annotations

import hypocenter_example.cold_temperature as cold_temperature
import pytest

from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts
from hypocenter.diagnose.verdicts import judge
from hypocenter.nouns import Summary


def evidence(temperature: float, n: int = 1, op: str = "aten.div.Tensor") -> Evidence:
    """Logits over a temperature, not finite in float16 and finite in float64."""
    logits = TensorFacts(name="self", dtype="float16", shape=(8, 8), summary=Summary(n=64, n_hist=64, absmax=40.0))
    divisor = TensorFacts(name="other", dtype="float16", shape=(n,), summary=Summary(n=n, n_hist=n, absmax=temperature))
    origin = OpFacts(index=3, op=op, phase="forward", site="head", inputs=(logits, divisor))
    again = Rerun(ran=True, finite=True, absmax=4e5)
    return Evidence(origin=origin, replayed=True, reproduced=True, float64=again, limit=65504.0)


def test_a_cold_temperature_is_named_with_its_value() -> None:
    verdict = cold_temperature.decide(evidence(1e-4))

    assert verdict is not None
    assert verdict.cause == "example.cold-temperature"
    assert verdict.actual == 1e-4


@pytest.mark.parametrize("harmless", [evidence(2e-3), evidence(1e-4, n=64), evidence(1e-4, op="aten.mul.Tensor")])
def test_near_misses_stay_silent(harmless: Evidence) -> None:
    assert cold_temperature.decide(harmless) is None


def test_hypocenter_asks_it_among_its_own_causes() -> None:
    assert judge(evidence(1e-4)).cause == "example.cold-temperature"
    assert judge(evidence(2e-3)).cause == "format-overflow"
