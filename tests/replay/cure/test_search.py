"""The search for the smallest set that fixes: exact, cheap, and honest about tests that contradict themselves."""

import math

from hypothesis import given
from hypothesis import strategies as st

from hypocenter.replay.cure.search import OutOfBudget, smallest

NAMES = [f"m{i}" for i in range(64)]


class Culprits:
    """Fixed when every culprit is in the set; counts its calls."""

    def __init__(self, culprits, budget=None):
        self.culprits, self.budget, self.asked = set(culprits), budget, []

    def __call__(self, names):
        if self.budget is not None and len(self.asked) >= self.budget:
            raise OutOfBudget
        self.asked.append(names)
        return self.culprits <= set(names)


@st.composite
def planted(draw, most=3):
    n = draw(st.integers(1, len(NAMES)))
    return NAMES[:n], draw(st.sets(st.sampled_from(NAMES[:n]), min_size=1, max_size=most))


@given(planted())
def test_what_was_planted_is_found_exactly_within_the_promised_number_of_tests(case):
    candidates, culprits = case
    fixes = Culprits(culprits)

    found = smallest(candidates, fixes)

    assert set(found.targets) == culprits
    assert found.is_minimal
    assert found.n_tests == len(fixes.asked) <= 3 * len(culprits) * math.log2(len(candidates)) + 10


@given(planted(most=6), st.integers(1, 8))
def test_a_wrong_guess_costs_tests_but_never_the_answer(case, guess):
    candidates, culprits = case

    assert set(smallest(candidates, Culprits(culprits), guess=guess).targets) == culprits


@given(planted())
def test_a_right_guess_is_confirmed_in_a_few_tests(case):
    candidates, culprits = case
    guessed = sorted(culprits) + [name for name in candidates if name not in culprits]

    found = smallest(guessed, Culprits(culprits), guess=len(culprits))

    assert set(found.targets) == culprits
    assert found.n_tests <= 4 * len(culprits)


@given(st.lists(st.sets(st.sampled_from(NAMES[:12]), min_size=1, max_size=4), min_size=1, max_size=4))
def test_of_several_ways_one_is_found_that_nothing_can_be_left_out_of(ways):
    def fixes(names):
        return any(way <= set(names) for way in ways)

    found = smallest(NAMES[:12], fixes)

    assert fixes(found.targets)
    assert not any(fixes([n for n in found.targets if n != name]) for name in found.targets)


def test_of_two_ways_the_preferred_one_is_found():
    found = smallest(["child", "parent"], lambda names: bool(set(names)))

    assert found.targets == ("child",)


@given(st.sets(st.integers(0, 2**8 - 1)))
def test_a_test_that_is_not_monotone_is_never_believed_unseen(good):
    def bits(names):
        return sum(1 << NAMES.index(name) for name in names)

    found = smallest(NAMES[:8], lambda names: bits(names) in good)

    assert found.targets is None or bits(found.targets) in good
    assert found.targets is None or not any(
        bits(found.targets) & ~(1 << i) in good
        for i in range(8)
        if len(found.targets) > 1 and NAMES[i] in found.targets
    )


def test_nothing_helps_and_nothing_to_try():
    assert smallest(NAMES, lambda names: False).targets is None
    assert smallest([], lambda names: True).targets is None


@given(planted(), st.integers(0, 20))
def test_when_the_budget_ends_the_best_verified_set_is_given_and_called_not_minimal(case, budget):
    candidates, culprits = case
    fixes = Culprits(culprits, budget)

    found = smallest(candidates, fixes)

    assert len(fixes.asked) <= budget
    assert found.targets is None or culprits <= set(found.targets)
    assert not found.is_minimal or set(found.targets) == culprits
