"""HC308: the weights of ranks are found whatever a few parameters do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.detect.group_rules.gradients_unbalanced import _Habits, _how, _judged, _mispaired, _unlike
from hypocenter.detect.law_rows import SKETCH
from hypocenter.detect.law_sketches import LawSketches, weights_of_ranks
from hypocenter.nouns import Finding


def parameters(weights: list[float], n: int, seed: int) -> dict[str, LawSketches]:
    """Sketches of `n` parameters of very different size, used with these weights of the ranks."""
    rng = np.random.default_rng(seed)
    found: dict[str, LawSketches] = {}
    for number in range(n):
        size = 10.0 ** rng.uniform(-6, 3)
        made = {rank: size * rng.standard_normal(SKETCH) for rank in range(len(weights))}
        used = sum(weight * made[rank] for rank, weight in enumerate(weights))
        found[f"p{number}"] = LawSketches(made=made, used=dict.fromkeys(made, used), prints=dict.fromkeys(made, 1.0))
    return found


@given(
    weights=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), min_size=2, max_size=6).filter(any),
    n=st.integers(5, 12),
    seed=st.integers(0, 1 << 30),
)
def test_weights_are_found_though_one_parameter_is_off(weights: list[float], n: int, seed: int) -> None:
    known = parameters(weights, n, seed)
    known["p1"].used = {rank: 3.0 * used for rank, used in known["p1"].used.items()}

    found = weights_of_ranks(known, range(len(weights)))

    assert found is not None
    assert found == pytest.approx(weights, abs=0.02)


def test_ranks_that_give_nearly_the_same_weigh_the_same_though_others_are_sums() -> None:
    known, rng = parameters([0.5, 0.5], 4, 0), np.random.default_rng(1)
    for each in known.values():
        each.made[1] = each.made[0] + 1e-3 * each.made[1]
        each.used = dict.fromkeys((0, 1), 0.5 * (each.made[0] + each.made[1]))
    for name in ("a", "b"):  # rows of an embedding, others on each rank
        made = {rank: rng.standard_normal(SKETCH) * (np.arange(SKETCH) % 2 == rank) for rank in (0, 1)}
        used = made[0] + made[1]
        known[name] = LawSketches(made=made, used=dict.fromkeys(made, used), prints=dict.fromkeys(made, 1.0))

    assert weights_of_ranks(known, range(2)) == pytest.approx([0.5, 0.5], abs=1e-6)


def test_each_rank_on_its_own_is_no_sum() -> None:
    known = parameters([1.0, 1.0, 1.0], 6, 0)
    for each in known.values():
        each.used = dict(each.made)

    assert weights_of_ranks(known, range(3)) == []


def test_ranks_with_the_same_gradients_cannot_be_told_apart() -> None:
    known = parameters([0.5, 0.5], 6, 0)
    for each in known.values():
        each.made[1] = each.made[0]

    assert weights_of_ranks(known, range(2)) is None


@pytest.mark.parametrize(
    ("used", "share", "words"),
    [
        (lambda made: 0 * made[0], 0.0, "is not used"),
        (lambda made: 4 * (made[0] + made[1]), 4.0, "4 times"),
        (lambda made: made[0], 1.0, "rank 0's own"),
        (lambda made: made[0][::-1] + made[1], None, "is not what"),
    ],
)
def test_how_it_is_off_is_said(used, share, words) -> None:
    made = parameters([1.0, 1.0], 1, 3)["p0"].made

    factor, how = _how(0, used(made), made, made[0] + made[1])

    assert words in how
    assert share is None or factor == pytest.approx(share)


def test_ranks_with_parallel_gradients_are_still_summed() -> None:
    habits, found = _Habits(replicas=frozenset(parameters([0.5, 0.5], 6, 0))), []
    for step in range(6):
        known = parameters([0.5, 0.5], 6, step)
        for each in known.values():  # first one rank gives most of the sum, then the other, and in the same direction
            each.made[0] = 10 * each.made[1] if step > 3 else 1e-4 * each.made[0]
            each.used = dict.fromkeys(each.made, 0.5 * (each.made[0] + each.made[1]))
        found += _judged(step, habits, known, range(2))

    assert found == []


def test_a_sum_that_comes_twice_is_still_told() -> None:
    habits, found = _Habits(replicas=frozenset(parameters([0.5, 0.5], 6, 0))), []
    for step in range(5):
        known = parameters([0.5, 0.5] if step < 4 else [1.0, 1.0], 6, step)
        found += _judged(step, habits, known, range(2))

    assert [each.step for each in found] == [4]


def used_by_one_rank(n_steps: int, kept: float) -> list[Finding]:
    """What is used on rank 1, a part of a model, holds so much of what was used at the step before."""
    habits, found, before = _Habits(), [], {}
    for step in range(n_steps):
        known = parameters([1.0, 1.0], 6, step)
        for name, each in known.items():
            each.prints = {0: 1.0, 1: 2.0}
            each.made = {rank: made / np.linalg.norm(made) for rank, made in each.made.items()}
            used = each.made[1] + kept * before.get(name, 0.0)
            each.used, before[name] = {0: each.made[0], 1: used}, used
        found += _judged(step, habits, known, [0, 1])
        habits.last = {(name, rank): used for name, each in known.items() for rank, used in each.used.items()}
        habits.last_step = step
    return found


def test_what_is_never_zeroed_is_told_from_the_first_step_on() -> None:
    (finding,) = used_by_one_rank(6, 1.0)

    assert (finding.step, finding.rank) == (1, 1)
    assert "still hold those of the step before" in finding.title


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9, -1.0])
def test_an_average_of_gradients_over_the_steps_is_meant(kept: float) -> None:
    assert used_by_one_rank(6, kept) == []


def left_out(may_be: bool, of_ranks: tuple[int, ...] = (0, 1)) -> list[Finding]:
    """From the first step on, what is used of two parameters on these ranks is what the rank itself has made."""
    habits, found = _Habits(replicas=frozenset(f"p{i}" for i in range(6)), may_be_left_out=may_be), []
    for step in range(5):
        known = parameters([0.5, 0.5], 6, step)
        for name in ("p1", "p2"):
            known[name].used |= {rank: known[name].made[rank] for rank in of_ranks}
        found += _judged(step, habits, known, [0, 1])
    return found


def test_what_a_loop_by_hand_never_adds_up_is_told_once() -> None:
    (finding,) = left_out(may_be=True)

    assert (finding.code, finding.step, finding.param) == ("HC308", 0, "p1")
    assert finding.why[-1] == "the same for 1 more: p2"


def test_where_the_model_computes_over_ranks_it_may_be_an_expert() -> None:
    assert left_out(may_be=False) == []


def test_where_one_rank_alone_has_its_own_another_rule_tells() -> None:
    assert left_out(may_be=True, of_ranks=(1,)) == []


def off(names: tuple[str, ...], factor: float, is_alone: bool = True, of_group: tuple[str, ...] = ()) -> list[Finding]:
    """From the first step on, what is used of these parameters is so many times the mean over two ranks."""
    habits, found = _Habits(replicas=frozenset(f"p{i}" for i in range(7)), is_alone=is_alone), []
    for step in range(5):
        known = parameters([0.5, 0.5], 7, step)
        for name in names:
            known[name].used = {rank: factor * used for rank, used in known[name].used.items()}
        for name in of_group:
            known[name].group = 1
        found += [*_judged(step, habits, known, [0, 1]), *_unlike(habits, [0, 1], known)]
    return found


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_sums_that_are_divided_for_some_parameters_only_are_told_once(factor: float) -> None:
    (finding,) = off(("p1", "p2", "p5"), factor)

    assert (finding.code, finding.step, finding.param) == ("HC308", 0, "p1")
    assert "of 3 parameters are off by the number of ranks, beside those of 4 others" in finding.title


@pytest.mark.parametrize(("also", "severity"), [((), "note"), (("p3",), "warning")])
def test_sums_of_a_group_of_the_optimizer_may_have_a_rate_that_makes_up_for_it(
    also: tuple[str, ...], severity: str
) -> None:
    assert [finding.severity for finding in off(("p1", "p2"), 2.0, of_group=("p1", "p2", *also))] == [severity]


@pytest.mark.parametrize(
    ("names", "factor", "is_alone"),
    [(("p1",), 2.0, True), (("p1", "p2"), 3.0, True), (("p1", "p2"), 0.1, True), (("p1", "p2"), 2.0, False)],
    ids=["one parameter", "another factor", "a smaller rate", "a layer that is cut over the ranks"],
)
def test_factors_that_may_be_meant_are_left_alone(names: tuple[str, ...], factor: float, is_alone: bool) -> None:
    assert off(names, factor, is_alone) == []


HEADS = ("head.0", "head.1", "head.2")


def of_parts(used_of: str, n_steps: int = 4, parts: tuple[str, ...] = HEADS) -> list[Finding]:
    """At each step two ranks use another part each; what is used is their `used_of`."""
    rng, habits, found = np.random.default_rng(0), _Habits(n_sums=2, usual=0.5), list[Finding]()
    for step in range(n_steps):
        names = [parts[(step + rank) % len(parts)] for rank in (0, 1)]
        made = [rng.standard_normal(SKETCH) for _ in names]
        known = {
            name: LawSketches(made={rank: made[rank]}, prints={rank: 1.0}) for rank, name in enumerate(names)
        }  # fmt: skip
        for rank, name in enumerate(names):
            own = {"sum": 0.5 * made[rank], "own": made[rank], "other": 0.5 * (made[0] + made[1])}[used_of]
            known[name].used = {rank: own}
        found += _mispaired(step, habits, known, 2)
    return found


def test_a_gradient_that_is_added_to_another_parameters_is_told_once_for_all() -> None:
    (found, *others) = of_parts("other", n_steps=8)

    assert (found.severity, found.step, found.rank, found.param) == ("warning", 0, 0, "head.0")
    assert found.title == "the gradient of head.0 is added to that of head.1"
    assert len(others) < len(HEADS)


@pytest.mark.parametrize("used_of", ["sum", "own"])
def test_parts_that_are_their_own_are_left_alone(used_of: str) -> None:
    assert of_parts(used_of, n_steps=8) == []


def test_tied_weights_of_two_stages_are_added_up_on_purpose() -> None:
    rng, habits = np.random.default_rng(0), _Habits(n_sums=2, usual=0.5)
    for step in range(4):
        made = [rng.standard_normal(SKETCH) for _ in range(2)]
        both = 0.5 * (made[0] + made[1])
        known = {
            "embed": LawSketches(made={0: made[0]}, used={0: both}),
            "head": LawSketches(made={1: made[1]}, used={1: both}),
        }
        assert list(_mispaired(step, habits, known, 2)) == []
