"""Healthy pairs stay silent, planted departures are found in time, and each acceptance rule decides what it says."""

from __future__ import annotations

import jsonschema
import numpy as np
import pytest
from made_curves import curve, falling, noise

from hypocenter.compare.curves.compare import compare_curves
from hypocenter.compare.curves.comparison import Check, CurveComparison, Limits
from hypocenter.compare.curves.curve import Curve
from hypocenter.compare.curves.evidence import window_for
from hypocenter.json_answer import published, to_json

SPREAD = 0.008  # nats; by how much two runs on the same batches typically differ


def statuses(runs: np.ndarray, n_repeats: int) -> list[str]:
    """Verdicts about pairs, each with its own repeats: rows (baseline, candidate, repeats …) of one pair each."""
    return [
        compare_curves(curve(run[0]), curve(run[1]), [curve(r) for r in run[2 : 2 + n_repeats]]).status for run in runs
    ]


def pairs(seed: int, n_pairs: int, n: int, memory: float, batches: float) -> np.ndarray:
    """Pairs with two repeats: the same trend and the same batches, noise of their own."""
    own = noise(seed, 4 * n_pairs, n, memory, SPREAD).reshape(n_pairs, 4, n)
    return falling(n) + noise(seed + 1, n_pairs, n, 0.0, batches)[:, None, :] + own


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "batches"), [(0.0, 0.1), (0.5, 0.0), (0.9, 0.1), (0.97, 0.1)])
@pytest.mark.parametrize("n_repeats", [0, 1, 2])
def test_200_pairs_of_noise_are_never_called_departed(memory: float, batches: float, n_repeats: int) -> None:
    found = statuses(pairs(10, 200, 300, memory, batches), n_repeats)

    assert found.count("departed") == 0
    assert found.count("accepted") >= (180 if n_repeats and memory < 0.97 else 100)


@pytest.mark.night
def test_200_runs_on_other_batches_are_never_called_departed() -> None:
    runs = falling(400) + noise(20, 600, 400, 0.5, 0.05).reshape(200, 3, 400)

    assert statuses(runs, 1).count("departed") == 0
    assert statuses(runs, 0).count("departed") == 0


@pytest.mark.parametrize(("n", "gap"), [(300, 0.05), (1000, 0.05), (3000, 0.03)])
def test_a_planted_step_is_found_within_half_a_window(n: int, gap: float) -> None:
    runs = pairs(30, 20, n, 0.5, 0.1)
    at = int(0.6 * n)
    runs[:, 1, at:] += gap

    for run in runs:
        found = compare_curves(curve(run[0]), curve(run[1]), [curve(r) for r in run[2:]])
        assert found.status == "departed"
        assert found.departure is not None
        assert abs(found.departure.step - at) <= max(window_for(n) // 2, 3)
        assert found.departure.until is None
        assert found.departure.gap == pytest.approx(gap, abs=0.01)
        assert found.confidence == "likely"


def test_a_slow_drift_is_found_and_said_to_grow() -> None:
    runs = pairs(40, 10, 2000, 0.5, 0.1)
    runs[:, 1] += 0.1 * np.clip(np.arange(2000) / 1000 - 1, 0, None)

    for run in runs:
        found = compare_curves(curve(run[0]), curve(run[1]), [curve(run[2]), curve(run[3])])
        assert found.status == "departed"
        assert found.departure is not None
        assert 1000 <= found.departure.step <= 1500
        assert "growing" in found.sentence
        assert found.late is not None
        assert found.late.slope == pytest.approx(0.1, rel=0.2)


def test_a_gap_that_the_repeats_have_too_is_none() -> None:
    """The last case of the porting guide: a steady 0.05 in the middle, between two runs of the baseline."""
    base, candidate, one, other = pairs(50, 1, 1000, 0.5, 0.1)[0]
    middle = (np.arange(1000) > 300) & (np.arange(1000) < 700)
    one, other = one + 0.08 * middle, other - 0.06 * middle

    found = compare_curves(curve(base), curve(candidate + 0.05 * middle), [curve(one), curve(other)])

    assert found.status != "departed"


def test_without_repeats_a_small_steady_gap_cannot_be_told() -> None:
    base, candidate, *_ = pairs(60, 1, 1000, 0.5, 0.1)[0]

    found = compare_curves(curve(base), curve(candidate + 0.04))

    assert found.status == "cannot-tell"
    assert any("--noise" in step for step in found.next)


def test_without_repeats_a_gross_gap_is_departed_but_only_possibly() -> None:
    base, candidate, *_ = pairs(60, 1, 1000, 0.5, 0.1)[0]

    found = compare_curves(curve(base), curve(candidate + 0.3 * (np.arange(1000) >= 600)))

    assert (found.status, found.confidence) == ("departed", "possible")
    assert found.departure is not None
    assert abs(found.departure.step - 600) <= 20


def test_identical_repeats_measure_nothing() -> None:
    base, candidate, *_ = pairs(60, 1, 400, 0.5, 0.1)[0]

    found = compare_curves(curve(base), curve(candidate), [curve(base)])

    assert found.floor_source == "within-curve"
    assert any("identical" in note for note in found.notes)


def check(found: CurveComparison, name: str) -> Check:
    return next(one for one in found.checks if one.name == name)


def test_equal_runs_are_accepted_as_equal() -> None:
    found = compare_curves(curve(falling(100)), curve(falling(100)))

    assert found.status == "accepted"
    assert found.sentence == "accepted: the losses are equal at all 100 steps"


def test_not_finite_from_a_step_on_is_proof() -> None:
    broken = falling(100)
    broken[40:] = np.nan

    found = compare_curves(curve(falling(100)), curve(broken))

    assert (found.status, found.confidence) == ("departed", "proven")
    assert check(found, "finite").step == 40
    assert "not finite from step 40 on" in found.sentence


def test_one_skipped_step_is_no_departure() -> None:
    broken = falling(100)
    broken[40] = np.inf

    assert compare_curves(curve(falling(100)), curve(broken)).status == "cannot-tell"


def test_frozen_weights_have_their_own_limits() -> None:
    batches = 3 + noise(70, 1, 1000, 0.0, 0.3)[0]
    still, norm = np.zeros(1000), np.ones(1000)
    tiny = noise(71, 1, 1000, 0.0, 0.0003)[0]

    good = compare_curves(
        curve(batches, lr=still, grad_norm=norm), curve(batches + tiny, lr=still, grad_norm=norm + 0.02)
    )
    bad = compare_curves(curve(batches, lr=still), curve(batches + 0.01, lr=still))
    steep = compare_curves(
        curve(batches, lr=still, grad_norm=norm), curve(batches + tiny, lr=still, grad_norm=norm + 0.2)
    )

    assert good.status == "accepted"
    assert check(good, "frozen-loss").limit == 0.001
    assert check(good, "frozen-grad-norm").status == "pass"
    assert bad.status == "departed"
    assert check(bad, "frozen-loss").actual == pytest.approx(0.01)
    assert steep.status == "cannot-tell"
    assert check(steep, "frozen-grad-norm").status == "fail"


def test_limits_can_be_changed() -> None:
    base, candidate, *_ = pairs(80, 1, 500, 0.0, 0.1)[0]
    rough = curve(candidate + noise(81, 1, 500, 0.0, 0.03)[0])

    assert compare_curves(curve(base), rough).status == "cannot-tell"
    assert compare_curves(curve(base), rough, limits=Limits(loss=0.2)).status == "accepted"


def test_what_rounding_makes_of_the_loss_alone_is_no_departure() -> None:
    base = falling(200) + noise(82, 1, 200, 0.0, 0.1)[0]
    repeats = [curve(base + noise(seed, 1, 200, 0.0, 1e-7)[0]) for seed in (83, 84)]
    moved = curve(base * (1 + 3e-7))

    assert compare_curves(curve(base), moved, repeats).status == "departed"
    accepted = compare_curves(curve(base), moved, repeats, limits=Limits(rounding=1e-6))
    assert accepted.status == "accepted"
    assert accepted.sentence.endswith("of rounding")  # the repeats alone do not explain it
    assert compare_curves(curve(base), curve(base * (1 + 3e-6)), repeats, limits=Limits(rounding=1e-6)).status == (
        "departed"
    )


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e3])
def test_what_rounding_makes_of_the_grad_norm_alone_is_no_departure(size: float) -> None:
    base = falling(200) + noise(82, 1, 200, 0.0, 0.1)[0]
    norms = size * np.exp(noise(85, 1, 200, 0.3, 0.01)[0])
    repeats = [curve(base + 1e-5, grad_norm=norms * np.exp(noise(s, 1, 200, 0.0, 1e-8)[0])) for s in (86, 87)]
    limits = Limits(rounding=1e-4, grad_norm_rounding=1e-6)

    def status(factor: float, limits: Limits) -> str:
        other = curve(base, grad_norm=norms * factor)
        return check(compare_curves(curve(base, grad_norm=norms), other, repeats, limits=limits), "grad-norm").status

    assert status(1 + 8e-8, Limits(rounding=1e-4)) == "pass"  # float32's own rounding, whatever the size
    assert status(1 + 5e-7, Limits(rounding=1e-4)) == "fail"
    assert status(1 + 5e-7, limits) == "pass"
    assert status(1 + 5e-6, limits) == "fail"


def test_a_factor_of_the_grad_norm_is_named() -> None:
    base, candidate, one, _ = pairs(90, 1, 300, 0.5, 0.1)[0]
    norms = np.exp(noise(91, 3, 300, 0.3, 0.01))

    found = compare_curves(
        curve(base, grad_norm=norms[0]), curve(candidate, grad_norm=8 * norms[1]), [curve(one, grad_norm=norms[2])]
    )

    assert found.status == "departed"
    assert check(found, "grad-norm").status == "fail"
    assert any("8 times" in note or "7.9" in note or "8.0" in note for note in found.notes)


def test_a_grad_norm_of_another_kind_of_log_accuses_nobody() -> None:
    base, candidate, one, _ = pairs(90, 1, 300, 0.5, 0.1)[0]
    norms = np.exp(noise(91, 3, 300, 0.3, 0.01))

    found = compare_curves(
        curve(base, grad_norm=norms[0]), curve(candidate, kind="mindformers", grad_norm=8 * norms[1]),
        [curve(one, grad_norm=norms[2])],
    )  # fmt: skip

    assert found.status == "cannot-tell"


def test_too_few_steps_and_no_loss_cannot_be_told() -> None:
    short = compare_curves(curve(falling(10)), curve(falling(10)))
    none = compare_curves(curve(falling(50)), Curve(source="x", kind="csv"))

    assert short.sentence == "cannot tell: only 10 steps have a loss on both sides, 20 are needed"
    assert none.sentence == "cannot tell: no loss in the candidate"


def test_losses_printed_with_three_decimals_are_not_apart_for_it() -> None:
    base, candidate, one, other = np.round(pairs(95, 1, 600, 0.5, 0.1)[0], 3)

    assert compare_curves(curve(base), curve(candidate + 0.0005), [curve(one), curve(other)]).status == "accepted"


@pytest.mark.parametrize("n", [25, 600])
def test_the_answer_validates_against_the_published_schema(n: int) -> None:
    base, candidate, one, _ = pairs(99, 1, n, 0.5, 0.1)[0]
    candidate = candidate.copy()
    candidate[n // 2 :] += 1.0
    candidate[n // 3] += 5.0
    rate = np.linspace(0, 1, n)

    for found in (
        compare_curves(curve(base, lr=rate), curve(candidate, lr=2 * rate), [curve(one)]),
        compare_curves(curve(base), Curve(source="x", kind="csv")),
        compare_curves(curve(base), curve(np.full(n, np.nan))),
    ):
        import json

        jsonschema.validate(json.loads(to_json(found)), published(CurveComparison))
