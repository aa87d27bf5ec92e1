"""In which way two learning-rate curves differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_curves import curve, falling

from hypocenter.compare.curves.compare import compare_curves, compare_schedules
from hypocenter.compare.curves.comparison import Schedule

N = 400


def cosine(*, warm_up: int = 40, top: float = 3e-4, least: float = 3e-5, total: int = N) -> np.ndarray:
    """Linear warm-up, then a half cosine down to the least."""
    t = np.arange(N)
    done = np.clip((t - warm_up) / (total - warm_up), 0, 1)
    return np.where(t < warm_up, top * (t + 1) / warm_up, least + (top - least) * (1 + np.cos(np.pi * done)) / 2)


def compared(left: np.ndarray, right: np.ndarray) -> Schedule:
    return compare_schedules(curve(falling(N), lr=left).series["lr"], curve(falling(N), lr=right).series["lr"], 2e-3)


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (cosine(), "same"), (cosine() * 1.0005, "same"), (cosine() * 2, "factor"), (cosine(warm_up=80), "warm-up"),
        (cosine(least=0.0), "min-lr"), (cosine(total=2 * N), "min-lr"), (np.roll(cosine(), 3), "shifted"),
        (np.full(N, 1e-4), "peak"), (np.where(np.arange(N) == 200, 0.0, cosine()), "shape"),
    ],
)  # fmt: skip
def test_the_kind_of_a_difference(other: np.ndarray, kind: str) -> None:
    assert compared(cosine(), other).kind == kind


def test_numbers_of_a_difference_are_told() -> None:
    assert compared(cosine(), cosine() * 2).values == {"factor": pytest.approx(2.0)}
    assert compared(cosine(), np.roll(cosine(), 3)).values == {"steps": 3.0}
    assert compared(cosine(), np.roll(cosine(), -1)).text == (
        "the candidate's learning rate is the baseline's 1 step earlier"
    )
    assert compared(cosine(warm_up=20), cosine(warm_up=60)).values == {"baseline": 19.0, "candidate": 59.0}


def test_another_schedule_is_proof_that_runs_differ() -> None:
    found = compare_curves(curve(falling(N), lr=cosine()), curve(falling(N), lr=cosine(warm_up=80)))

    assert (found.status, found.confidence) == ("departed", "proven")
    assert "warm-up ends at step 39" in found.sentence
    assert "the losses agree so far" in found.sentence


def test_one_step_between_two_kinds_of_log_is_their_custom() -> None:
    left = curve(falling(N), lr=cosine())
    right = curve(falling(N), lr=np.roll(cosine(), -1))

    assert compare_curves(left, replace(right, kind="trainer_state")).status == "accepted"
    assert compare_curves(left, right).status == "departed"


def test_constants_are_compared_too() -> None:
    assert compared(np.full(N, 1e-4), np.full(N, 1e-4)).kind == "same"
    assert compared(np.full(N, 1e-4), np.full(N, 2e-4)).kind == "factor"
    assert compared(np.zeros(N), np.zeros(N)).kind == "same"
