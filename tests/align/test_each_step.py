from __future__ import annotations

import numpy as np

from hypocenter.align.stages.frozen import each_step
from hypocenter.compare.curves.curve import Curve, Series

BASE = 3.0 + 0.2 * np.random.default_rng(0).standard_normal(60)


def _curve(values: np.ndarray, digests: dict[int, str] | None = None) -> Curve:
    series = Series(name="loss", steps=np.arange(len(values)), values=values)
    return Curve(source="", kind="recording", series={"loss": series}, digests=digests or {})


def _noise(seed: int, size: float = 1e-4) -> np.ndarray:
    return BASE * (1 + size * np.random.default_rng(seed).standard_normal(len(BASE)))


def _judged(candidate: np.ndarray):
    found = each_step(
        "loss", _curve(BASE), _curve(candidate, {17: "batch"}), [_curve(_noise(1)), _curve(_noise(2))], 4.0
    )
    assert found is not None
    return found


def test_noise_of_the_repeats_size_has_no_outliers() -> None:
    found = _judged(_noise(3))

    assert found.outliers == ()
    assert 0 < found.largest < 4 * found.floor


def test_one_batch_that_is_treated_otherwise_is_the_one_that_stands_out() -> None:
    candidate = _noise(3)
    candidate[17] *= 1.01

    found = _judged(candidate)

    assert found.outliers == (17,)
    assert found.text_of(17).endswith(", batch batch")
    assert found.plain()["outliers"] == [17]


def test_a_small_difference_at_every_step_is_seen_though_no_step_is_beyond_the_largest_noise() -> None:
    usual = float(np.median(np.abs(_noise(1) - BASE) / BASE))
    found = _judged(BASE * (1 + 6 * usual))

    assert found.largest < 4 * found.floor
    assert len(found.outliers) == len(BASE)


def test_nothing_is_told_of_a_quantity_that_one_side_lacks() -> None:
    assert each_step("grad_norm", _curve(BASE), _curve(BASE), [], 4.0) is None


def test_what_rounding_makes_of_the_loss_alone_does_not_stand_out() -> None:
    same_way = BASE * (1 + 3e-7)
    repeats = [_curve(_noise(1, 1e-8)), _curve(_noise(2, 1e-8))]

    found = [each_step("loss", _curve(BASE), _curve(same_way), repeats, 4.0, rounding=r) for r in (0.0, 2e-7)]

    assert [len(one.outliers) for one in found if one is not None] == [len(BASE), 0]
