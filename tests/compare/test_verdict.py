"""Pairs of good runs, simulated: one more draw of the same noise is the same, whatever the number of spots."""

from __future__ import annotations

import numpy as np
import pytest

from hypocenter.compare.distances.columns import SUMMARY, Distances
from hypocenter.compare.noise import REPEATS, Floors
from hypocenter.compare.verdict import (
    AT,
    BUDGET,
    CANNOT_TELL,
    DIFFERS,
    LEVEL,
    RARE,
    WITHIN,
    apart_from,
    by_chance,
    row_verdicts,
)

N_PAIRS = 400
N_SPOTS = (10, 40, 160, 640, 2500, 5000)


def good_pair(random: np.random.Generator, n_spots: int, n_repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances of a good run, and floors: the largest of the repeats', never below the median (as Noise has it).

    Each spot has noise of its own size, in as many directions as a vector or a matrix of noise has.
    """
    directions = random.integers(12, 400, n_spots)
    sizes = np.exp(random.normal(-14.0, 1.0, n_spots))
    drawn = sizes * np.sqrt(random.chisquare(directions, (n_repeats + 1, n_spots)) / directions)
    floors = drawn[1:].max(axis=0)
    return drawn[0], np.maximum(floors, np.median(floors))


def verdicts(relative: np.ndarray, floors: np.ndarray, *, source: int = REPEATS, n_samples: int = 1) -> np.ndarray:
    """What the rows are judged to be."""
    n = len(relative)
    none, is_equal = np.full(n, np.nan), np.zeros(n, np.bool_)
    distances = Distances(
        depth=np.full(n, SUMMARY, np.int8), relative=relative, low=relative, high=relative, cosine=none, scale=none,
        is_equal=is_equal,
    )  # fmt: skip
    measured = Floors(relative=floors, source=np.full(n, source, np.int8), n_samples=np.full(n, n_samples))
    return row_verdicts(distances, measured, BUDGET, n)


@pytest.mark.parametrize("n_repeats", [1, 3])
@pytest.mark.parametrize("n_spots", N_SPOTS)
def test_one_more_draw_of_the_same_noise_is_no_difference(n_spots, n_repeats):
    random = np.random.default_rng(n_spots + n_repeats)
    n_wrong = 0

    for _ in range(N_PAIRS):
        judged = verdicts(*good_pair(random, n_spots, n_repeats))
        assert not (judged == DIFFERS).any()
        n_wrong += int((judged == CANNOT_TELL).sum() > by_chance(n_spots, BUDGET))

    assert n_wrong <= LEVEL * N_PAIRS


@pytest.mark.parametrize("n_samples", [1, 3])
@pytest.mark.parametrize("n_spots", N_SPOTS)
def test_tails_as_heavy_as_the_bound_stay_within_the_level(n_spots, n_samples):
    """The heaviest tails that the rule allows for: a share of RARE beyond 4 floors, falling with the fourth power."""
    random = np.random.default_rng(n_spots)
    n_beyond = n_far = 0

    for _ in range(N_PAIRS):
        ratio = AT * (RARE / n_samples**2 / random.random(n_spots)) ** 0.25
        judged = verdicts(ratio, np.ones(n_spots), n_samples=n_samples)
        n_far += bool((judged == DIFFERS).any())
        n_beyond += bool((judged != WITHIN).sum() > by_chance(n_spots, BUDGET))

    assert n_far <= 3 * LEVEL * N_PAIRS  # three times: a share of 1 % of 400 pairs is 4 give or take 2
    assert n_beyond <= 3 * LEVEL * N_PAIRS


@pytest.mark.parametrize("n_spots", N_SPOTS)
def test_a_planted_difference_is_found_among_any_number_of_spots(n_spots):
    random = np.random.default_rng(n_spots)

    for _ in range(20):
        relative, floors = good_pair(random, n_spots, 1)
        relative[n_spots // 2] += 32.0 * floors[n_spots // 2]  # one spot alone, by five bits

        assert verdicts(relative, floors)[n_spots // 2] == DIFFERS


@pytest.mark.parametrize("n_spots", N_SPOTS)
def test_a_small_difference_at_a_tenth_of_the_spots_is_not_what_chance_gives(n_spots):
    random = np.random.default_rng(n_spots)

    relative, floors = good_pair(random, n_spots, 1)
    relative[: max(1, n_spots // 10)] = 5.0 * floors[: max(1, n_spots // 10)]

    assert (verdicts(relative, floors) != WITHIN).sum() > by_chance(n_spots, BUDGET)


def test_the_limits_grow_with_what_is_looked_at_and_never_fall_below_the_budget():
    numbers = [apart_from(n, BUDGET) for n in (0, 1, 100, 10_000, 1_000_000)]

    assert numbers == sorted(numbers)
    assert numbers[0] > BUDGET
    assert apart_from(1000, BUDGET, 3) < apart_from(1000, BUDGET, 1) == apart_from(1000, BUDGET, 0)
    assert apart_from(1000, 500.0) == 500.0
    assert [by_chance(n, BUDGET) for n in (0, 1)] == [0, 0]
    assert by_chance(10_000, BUDGET) < 30 < by_chance(10_000, 1.0)
    assert by_chance(10**9, BUDGET) == pytest.approx(1e6, rel=0.01)
