"""What the checks of all ranks say together: verdicts, and reasons to say nothing."""

from dataclasses import replace

import pytest

from hypocenter.detect.checked import Checked, WrongOp
from hypocenter.detect.hardware import rulings

WRONG = WrongOp(op="aten.mm.default", site="2", module="Linear", phase="forward", source=None, index="[0]", n_wrong="1")


def same(rank, **more):
    """A check that came to the run's bits, all ops right."""
    return Checked(rank=rank, step=5, microbatch=0, run=1, again=1, n_compared=7, n_equal=7, n_ops=20, **more)


def once(rank, **more):
    """One whose run had other bits in one gradient."""
    check = replace(same(rank), run=9, n_replays=14, differ=("2.weight",), n_equal=6, largest=0.5)
    return replace(check, **more)


def wrong(rank, **more):
    """One that comes to the same wrong bits again."""
    return replace(same(rank), n_wrong=1, wrong=[WRONG], **more)


def by(rank, check, **more):
    """Done again by a neighbour, with the same bits unless said otherwise."""
    return replace(check, neighbour=rank, theirs=check.again, theirs_ops=20, theirs_replays=5, **more)


def other(rank, check, **more):
    check = replace(by(rank, check), theirs=77, theirs_differ=("2.weight",), theirs_largest=1e-7, n_replays=5)
    return replace(check, **more)


def said(*checks, faithful=0, floor=0.0):
    return [(r.kind, r.check.rank, r.confidence) for r in rulings(checks, lambda rank: faithful, lambda rank: floor)]


def test_healthy_ranks_are_silent():
    assert said(by(1, same(0)), by(0, same(1))) == []


def test_other_bits_in_one_gradient_of_one_rank_are_a_transient_fault():
    assert said(same(0), once(1)) == [("transient", 1, "likely")]


def test_when_all_differ_another_step_must_show_that_replays_are_faithful():
    all_differ = once(1, n_equal=0, differ=("loss", "0.weight"))

    assert said(same(0), all_differ) == []
    assert said(same(0), all_differ, faithful=1) == [("transient", 1, "possible")]
    assert said(same(0), by(0, all_differ), faithful=1) == [("transient", 1, "likely")]


@pytest.mark.parametrize(
    "why_not",
    [
        {"state": ("net.n_calls",)},
        {"n_ops": 0},
        {"noise": 0.4},  # two replays differ by nearly as much
        {"noise": 1e-12, "largest": 1e-8},  # within a few ulps of where replays differ
        {"n_replays": 4},
    ],
)
def test_reasons_to_say_nothing(why_not):
    assert said(same(0), once(1, **why_not), faithful=1) == []


def test_a_few_replays_are_enough_for_less():
    assert said(same(0), once(1, n_replays=5)) == [("transient", 1, "possible")]
    assert said(same(0), once(1, n_replays=5), faithful=9) == [("transient", 1, "likely")]


def test_what_replays_of_other_steps_differ_by_is_a_floor_too():
    assert said(same(0), once(1), floor=0.4) == []
    assert said(same(0), once(1), floor=0.01) != []


def test_neighbours_at_odds_say_nothing_before_both_are_measured():
    for few in ({"n_replays": 4}, {"theirs_replays": 4}, {"theirs_noise": 1e-7}, {"noise": 1e-7}):
        ring = [by(1, same(0)), other(2, same(1), **few), other(0, same(2), **few)]
        assert said(*ring) == []


def test_many_ranks_at_once_are_the_program():
    assert said(once(0), once(1), faithful=1) == []
    assert said(once(0), once(1), same(2), same(3), same(4), faithful=1) != []


def test_an_op_wrong_on_one_rank_alone_is_its_device():
    assert said(same(0), wrong(1), same(2)) == [("persistent", 1, "likely")]
    assert said(same(0), other(0, wrong(1))) == [("persistent", 1, "proven")]


def test_an_op_wrong_everywhere_is_the_kernel():
    assert said(wrong(0), wrong(1)) == [("kernel", 0, "likely")]
    assert said(by(1, wrong(0)), wrong(1)) == [("kernel", 0, "proven")]


def test_the_same_wrong_bits_at_a_neighbour_are_the_kernel():
    assert said(same(0), by(0, wrong(1))) == [("kernel", 1, "proven")]


def test_one_rank_alone_cannot_tell():
    assert said(wrong(0)) == [("kernel", 0, "possible")]


def test_three_ranks_outvote_the_one_whose_low_bits_differ():
    ring = [by(1, same(0)), other(2, same(1)), other(0, same(2))]

    assert said(*ring) == [("persistent", 2, "proven")]


def test_two_ranks_at_odds_need_a_vote():
    undecided = [other(1, same(0)), other(0, same(1))]
    moved = [replace(undecided[0], moved=(0.0, 3.0)), replace(undecided[1], moved=(3.0, 0.0))]

    assert said(*undecided) == []
    assert said(*moved) == [("persistent", 1, "likely")]


def test_neighbours_that_are_not_alike_may_round_otherwise():
    ring = [by(1, same(0)), other(2, same(1), is_alike=False), other(0, same(2), is_alike=False)]

    assert said(*ring) == []
