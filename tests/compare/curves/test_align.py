"""Pairing by step: whatever is missing, doubled, shifted or averaged, only what belongs together is compared."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_curves import curve, falling, noise

from hypocenter.compare.curves.align import align, better_lag, origin
from hypocenter.compare.curves.collector import last_attempt
from hypocenter.compare.curves.curve import Curve, Series

steps = st.lists(st.integers(0, 500), min_size=1, max_size=60, unique=True).map(sorted)


def of(at: list[int], *, is_mean: bool = False, shift: int = 0) -> Series:
    """A series whose value is a function of its step."""
    where = np.array(at, dtype=np.int64)
    return Series(name="loss", steps=where, values=np.sin(where - shift).astype(float), is_mean=is_mean)


@given(steps, steps, st.integers(-20, 20))
def test_only_steps_that_both_have_are_paired(left: list[int], right: list[int], offset: int) -> None:
    pair = align(of(left), of(right, shift=-offset), offset=offset)

    assert pair.steps.tolist() == sorted(set(left) & {step + offset for step in right})
    assert pair.baseline.tolist() == np.sin(pair.steps).tolist()
    assert pair.candidate == pytest.approx(np.sin(pair.steps - offset + offset))


@given(steps, steps)
def test_alignment_is_symmetric(left: list[int], right: list[int]) -> None:
    one, other = align(of(left), of(right)), align(of(right), of(left))

    assert one.steps.tolist() == other.steps.tolist()
    assert one.baseline.tolist() == other.candidate.tolist()


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 2**32))
def test_a_mean_over_an_interval_meets_the_mean_of_its_steps(every: int, count: int, seed: int) -> None:
    fine = np.random.default_rng(seed).normal(size=every * count)
    coarse = fine.reshape(count, every).mean(axis=1)
    ends = np.arange(count) * every + every - 1

    logged = Series(name="loss", steps=ends, values=coarse, is_mean=True)
    pair = align(Series(name="loss", steps=np.arange(every * count), values=fine), logged)

    assert pair.steps.tolist() == ends.tolist()
    assert pair.baseline == pytest.approx(pair.candidate)


def test_an_interval_of_which_steps_are_missing_is_left_out() -> None:
    logged = Series(name="loss", steps=np.array([9, 19, 29]), values=np.ones(3), is_mean=True)
    fine = Series(name="loss", steps=np.r_[0:12, 20:30], values=np.ones(22))

    assert align(fine, logged).steps.tolist() == [9, 29]


def test_a_step_that_is_not_finite_makes_its_mean_not_finite() -> None:
    logged = Series(name="loss", steps=np.array([9, 19]), values=np.ones(2), is_mean=True)
    values = np.ones(20)
    values[3] = np.inf

    pair = align(Series(name="loss", steps=np.arange(20), values=values), logged)

    assert np.isfinite(pair.baseline).tolist() == [False, True]
    assert pair.finite().steps.tolist() == [19]


@given(st.lists(st.integers(0, 30), max_size=60))
def test_a_history_written_twice_keeps_the_later_one(at: list[int]) -> None:
    values = np.arange(len(at), dtype=float)
    kept, when, n_dropped = last_attempt(np.array(array("q", at)), values)

    assert (np.diff(kept) > 0).all()
    assert len(kept) + n_dropped == len(at)
    for step, index in zip(kept, when, strict=True):
        assert at[int(index)] == step
        assert all(later > step for later in at[int(index) + 1 :])


@pytest.mark.parametrize(("first", "every", "expected"), [(0, 1, 0), (1, 1, 1), (10, 10, 1), (9, 10, 0), (500, 1, 0)])
def test_where_an_unknown_log_counts_from(first: int, every: int, expected: int) -> None:
    values = np.ones(5)
    series = Series(name="loss", steps=np.arange(5) * every + first, values=values)

    assert origin(Curve(source="", kind="csv", series={"loss": series})) == expected
    assert origin(Curve(source="", kind="megatron", series={"loss": series}, counts_from=1)) == 0


@pytest.mark.parametrize("lag", [-2, -1, 1, 3])
def test_a_shift_is_found_by_the_batches_noise(lag: int) -> None:
    loss = falling(200) + noise(0, 1, 200, 0.0, 0.1)[0]
    baseline = curve(loss).series["loss"]
    shifted = Series(name="loss", steps=np.arange(200) - lag, values=loss + 0.01)

    assert better_lag(baseline, shifted, 0) == lag
    assert better_lag(baseline, baseline, 0) is None


def test_runs_on_other_batches_have_no_better_lag() -> None:
    several = falling(200) + noise(1, 20, 200, 0.0, 0.1)

    assert {better_lag(curve(a).series["loss"], curve(b).series["loss"], 0) for a, b in pairwise(several)} == {None}
