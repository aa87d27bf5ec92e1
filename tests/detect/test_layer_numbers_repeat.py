"""HC335: layer numbers over pipeline stages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from panels_by_hand import grid_of, panel_of

from hypocenter.detect.group_rules.layer_numbers_repeat import check
from hypocenter.detect.panel import JobHistory
from hypocenter.nouns import replace


def job(*stages, dp=1):
    """Layers of each pipeline stage."""
    places = grid_of(dp=dp, pp=len(stages))
    return {rank: replace(place, layers=stages[place.coords.pp]) for rank, place in places.items()}


def layers(*numbers, name="decoder.layers"):
    return {f"{name}.{at}": number for at, number in enumerate(numbers)}


def test_stages_that_count_from_one_again_are_named_once():
    places, history = job(layers(1, 2), layers(1, 2), dp=2), JobHistory()

    (found,) = check(panel_of([], places, history=history))

    assert (found.rank, found.site, found.severity) == (2, "decoder.layers.0", "warning")
    assert "1, 2 twice" in found.why[0]
    assert list(check(panel_of([], places, step=1, history=history))) == []


@pytest.mark.parametrize(
    "stages",
    [
        (layers(1, 2), layers(3, 4)),
        (layers(1, 2, 5, 6), layers(3, 4, 7, 8)),  # interleaved
        (layers(1, 2), layers(3, 4) | layers(1, name="mtp.layers")),  # heads that predict further tokens
        (layers(1, 2, name="encoder.layers"), layers(1, 2)),  # encoder and decoder count by themselves
        (layers(1, 2), {}),
        ({}, {}),
    ],
)
def test_numbers_that_belong_to_one_layer_each_are_silent(stages):
    assert list(check(panel_of([], job(*stages)))) == []


def test_ranks_of_one_stage_share_numbers():
    places = {rank: replace(place, layers=layers(1, 2)) for rank, place in grid_of(dp=4).items()}

    assert list(check(panel_of([], places))) == []
