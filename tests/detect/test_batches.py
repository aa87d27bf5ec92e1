"""The order of batches: where it goes on elsewhere, and workers that all hand out the same."""

import pytest

from hypocenter.detect.batches import Again, Jumped, Loaders, Repeats
from hypocenter.detect.replica_rows import LOADER
from hypocenter.nouns import Reading, Summary

N = 50  # batches of a pass


def batch(number):
    summary = Summary(n=8, min=0.0, max=1.0)
    return [
        Reading(
            step=0,
            microbatch=0,
            phase="data",
            site="batch.in[0]",
            port="field",
            order=0,
            digest=number,
            summary=summary,
        )
    ]


def fed(numbers, resumed_at=None):
    repeats, found = Repeats(), []
    for step, number in enumerate(numbers):
        if step == resumed_at:
            repeats.resume()
        found.append(repeats.add(batch(number), step))
    return [each for each in found if each is not None]


def test_passes_in_the_same_order_are_silent():
    assert fed([*range(N)] * 5) == []


@pytest.mark.parametrize(("goes_on", "n"), [(44, 4), (32, -8)])
def test_a_known_order_that_goes_on_elsewhere_is_told_with_the_distance(goes_on, n):
    order = [*range(N), *range(40), *range(goes_on, N), *range(N)]

    (found,) = fed(order, resumed_at=N + 40)

    assert isinstance(found, Jumped)
    assert (found.step, found.n, found.is_resumed) == (N + 40, n, True)


def test_an_order_that_changes_for_good_is_no_jump():
    assert not any(isinstance(each, Jumped) for each in fed([*range(N)] * 2 + [*reversed(range(N))] * 3))


def test_a_batch_that_comes_again_is_told_once():
    (found,) = fed([*range(40), 39, *range(40, 60), 59])

    assert isinstance(found, Again)
    assert (found.step, found.n_back) == (39, 1)


def workers(numbers, n_workers):
    loaders, found = Loaders(), []
    for step, number in enumerate(numbers):
        told = Reading(
            step=step, microbatch=0, phase="data", site=LOADER, port="worker", order=0,
            summary=Summary(n=n_workers, sum=float(step)),
        )  # fmt: skip
        found.append(loaders.copies(batch(number), [told], step))
    return [each for each in found if each is not None]


def test_workers_that_hand_out_the_same_are_told_and_others_are_not():
    assert workers([number // 3 for number in range(40)], 3) == [(1, 0, 3)]
    assert workers(range(40), 3) == []
    assert workers([number // 4 for number in range(40)], 3) == []
    assert workers([7] * 40, 3) == []


def indices(firsts, n_samples=800, resumed_at=None):
    loaders, found = Loaders(), []
    for step, first in enumerate(firsts):
        if step == resumed_at:
            loaders.resume()
        summary = Summary(n=16, min=float(first), max=first + 15.0, absmax=float(n_samples))
        row = Reading(step=step, microbatch=0, phase="data", site=LOADER, port="indices", order=0, summary=summary)
        found.append(loaders.jumped([row], step))
    return [each for each in found if each is not None]


@pytest.mark.parametrize(("goes_on", "n"), [(640 + 64, 64), (640 - 128, -128), (0, -640)])
def test_samples_left_out_or_used_again_after_a_checkpoint_are_told_in_the_first_pass(goes_on, n):
    (found,) = indices([*range(0, 640, 16), *range(goes_on, 800, 16)], resumed_at=40)

    assert (found.step, found.n, found.what) == (40, n, "samples")


def test_passes_whole_or_cut_short_are_silent():
    assert indices([*range(0, 800, 16)] * 3) == []
    assert indices([*range(0, 800, 16)] * 3, resumed_at=50) == []
    assert indices([*range(0, 640, 16)] * 3) == []
