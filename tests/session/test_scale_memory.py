"""Which loss scale a cure should let the run train with."""

import pytest

from hypocenter.replay.case import MODEST_SCALE, Case
from hypocenter.session.scale_memory import LARGEST_START, ScaleMemory


def memory(*steps):
    found = ScaleMemory()
    for scale, healthy in steps:
        found.note(scale, healthy=healthy)
    return found


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], None),
        ([(None, True)], None),
        ([(65536.0, False), (32768.0, False), (2.0**-40, False)], 65536.0),
        ([(2.0**32, False)], LARGEST_START),
        ([(65536.0, False), (8192.0, True), (16384.0, True), (1.0, False)], 16384.0),
        ([(float("nan"), False), (0.0, False), (512.0, False)], 512.0),
    ],
)
def test_the_largest_that_was_healthy_or_the_first(steps, expected):
    assert memory(*steps).to_train_with == expected


def case(loss_scale, train_scale):
    return Case(
        id="", trigger="nonfinite-grad", step=0, rank=0, world_size=1, microbatches=(), bad_params=(), n_params=0,
        loss=None, loss_scale=loss_scale, healthy_steps=0, train_scale=train_scale,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loss_scale", "train_scale", "expected"),
    [
        (None, None, (None,)),
        (65536.0, 65536.0, (65536.0, MODEST_SCALE, 1.0)),
        (2.0**-40, 65536.0, (65536.0, MODEST_SCALE, 1.0)),  # collapsed
        (131072.0, 65536.0, (131072.0, MODEST_SCALE, 1.0)),  # grown too far
        (0.5, 0.5, (0.5,)),
    ],
)
def test_scales_to_search_at(loss_scale, train_scale, expected):
    assert case(loss_scale, train_scale).scales == expected
