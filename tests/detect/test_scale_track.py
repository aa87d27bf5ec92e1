"""A loss scaler played through by its published rule, over gradients of every kind: when must the verdict be silent?"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.detect.scale_track import Collapse, Repeated, ScaleTrack, Skip

LARGEST_HALF = 65504.0


@dataclass
class Played:
    """What was seen and said while a scaler was played through."""

    track: ScaleTrack = field(default_factory=ScaleTrack)
    kinds: list[str] = field(default_factory=list)  # of the skips
    skips: list[int] = field(default_factory=list)  # their steps
    collapses: list[tuple[int, Collapse]] = field(default_factory=list)
    repeated: list[tuple[int, Repeated]] = field(default_factory=list)


def play(magnitudes, *, init_scale, growth_interval, culprits=None):
    """torch.amp.GradScaler: halve at an overflow, double after growth_interval updates in a row without one.

    Args:
        magnitudes: largest gradient of each step, the scale taken out.
        culprits: parameter of each step, one for all when not given.
    """
    played, scale, tracker = Played(), init_scale, 0
    for step, magnitude in enumerate(magnitudes):
        skipped = not magnitude * scale <= LARGEST_HALF
        culprit = culprits[step] if culprits is not None else "blocks.1.attn.qkv.weight"
        if skipped:
            skip = Skip(step=step, scale=scale, culprit=culprit, is_first=played.track.n_in_a_row == 0)
            played.skips.append(step)
            played.kinds.append(played.track.kind(scale))
            played.collapses += [(step, c) for c in [played.track.collapse(skip)] if c is not None]
            played.repeated += [(step, r) for r in [played.track.repeated(skip)] if r is not None]
        played.track.add(step, scale, skipped=skipped, culprit=culprit if skipped else "")
        tracker = 0 if skipped else tracker + 1
        scale *= 0.5 if skipped else 2.0 if tracker == growth_interval else 1.0
        tracker %= growth_interval
    return played


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    init_log2=st.integers(8, 32),
    growth_interval=st.integers(2, 60),
    typical_log2=st.floats(-20.0, 6.0),
    spread_octaves=st.floats(0.0, 1.5),
)
def test_gradients_of_one_size_are_never_called_ill(seed, init_log2, growth_interval, typical_log2, spread_octaves):
    generator = random.Random(seed)
    magnitudes = [2.0 ** generator.gauss(typical_log2, spread_octaves) for _ in range(1000)]

    played = play(magnitudes, init_scale=2.0**init_log2, growth_interval=growth_interval)

    assert played.collapses == []
    assert played.repeated == []


@settings(max_examples=60, deadline=None)
@given(
    init_log2=st.integers(0, 32), growth_interval=st.integers(2, 40), start=st.integers(9, 60), seed=st.integers(0, 99)
)
def test_nan_at_every_scale_is_a_collapse_wherever_it_begins(init_log2, growth_interval, start, seed):
    generator = random.Random(seed)
    healthy = [2.0 ** generator.uniform(-14.0, -12.0) for _ in range(start)]

    played = play([*healthy, *[float("inf")] * 60], init_scale=2.0**init_log2, growth_interval=growth_interval)

    ((step, found),) = played.collapses
    assert found.first.step <= start <= step
    assert step - found.first.step + 1 >= found.n_skips >= 3
    assert set(found.culprits) == {"blocks.1.attn.qkv.weight"}


@given(init_log2=st.integers(20, 32))
def test_first_skips_are_warm_up(init_log2):
    played = play([1.0] * 200, init_scale=2.0**init_log2, growth_interval=2000)

    assert played.kinds == ["warm-up"] * (init_log2 - 15)


def test_a_higher_scale_that_is_taken_back_is_a_probe():
    played = play([1.0] * 100, init_scale=2.0**15, growth_interval=10)

    assert len(played.kinds) >= 8
    assert set(played.kinds) == {"probing"}


def test_a_gradient_that_grows_at_a_scale_that_had_lasted_is_a_fall():
    played = play([1.0] * 20 + [7.0] * 5, init_scale=2.0**15, growth_interval=2000)

    assert (played.kinds, played.skips) == (["fall", "fall"], [20, 21])


@pytest.mark.parametrize(("n_times", "expected"), [(4, 0), (5, 1), (30, 1)])
def test_a_layer_that_outgrows_the_scale_again_and_again_is_said_once(n_times, expected):
    magnitudes = [1.0] * 20
    for k in range(n_times):
        magnitudes += [2.0 ** (k + 1.5), *[2.0**k] * 6]

    played = play(magnitudes, init_scale=2.0**15, growth_interval=2000)

    assert len(played.repeated) == expected
    if expected:
        step, found = played.repeated[0]
        assert (found.name, found.n_skips, found.n_of) == ("blocks.1.attn.qkv.weight", 5, 5)
        assert (found.falls[0].step, step) == (20, 20 + 4 * 7)


@pytest.mark.parametrize(("every", "expected"), [(10, 1), (40, 0)])
def test_under_a_fixed_scale_only_frequent_skips_of_one_layer_count(every, expected):
    track, found = ScaleTrack(is_dynamic=False), 0
    for step in range(400):
        skipped = step > 20 and step % every == 0
        skip = Skip(step=step, scale=1024.0, culprit="w", is_first=True)
        found += skipped and track.repeated(skip) is not None
        track.add(step, 1024.0, skipped=skipped, culprit="w" if skipped else "")

    assert found == expected


def test_a_scale_that_grows_in_between_forgives():
    magnitudes = [1.0] * 20
    for k in range(12):
        magnitudes += [2.0 ** (k + 1.5), *[1.0] * 12]

    assert play(magnitudes, init_scale=2.0**15, growth_interval=2000).repeated != []
    assert play(magnitudes, init_scale=2.0**15, growth_interval=8).repeated == []


def test_parameters_of_one_module_are_named_together_and_others_are_not():
    magnitudes, culprits = [1.0] * 20, [""] * 20
    for k in range(6):
        magnitudes += [2.0 ** (k + 1.5), *[2.0**k] * 6]
        culprits += [f"blocks.1.attn.{'q' if k % 2 else 'k'}.weight"] * 7

    played = play(magnitudes, init_scale=2.0**15, growth_interval=2000, culprits=culprits)

    ((_, found),) = played.repeated
    assert (found.name, found.is_parameter) == ("blocks.1.attn", False)


def test_layers_that_take_turns_are_not_accused():
    magnitudes, culprits = [1.0] * 20, [""] * 20
    for k in range(12):
        magnitudes += [2.0 ** (k + 1.5), *[2.0**k] * 6]
        culprits += [("embed.weight", "head.weight", "mlp.weight")[k % 3]] * 7

    played = play(magnitudes, init_scale=2.0**15, growth_interval=2000, culprits=culprits)

    assert played.repeated == []


def test_a_fixed_scale_that_skips_everything_is_said_after_sixteen():
    track = ScaleTrack(is_dynamic=False)
    found = []
    for step in range(40):
        skip = Skip(step=step, scale=65536.0, culprit="w", is_first=step == 0)
        found += [step] if track.collapse(skip) is not None else []
        track.add(step, 65536.0, skipped=True, culprit="w")

    assert found == [15]


def test_at_the_scalers_floor_of_one_eight_skips_in_a_row_suffice():
    track = ScaleTrack(floor=1.0)
    found = []
    for step, exponent in enumerate([16, *range(16, 0, -1), 0, 0]):
        scale = 2.0**exponent
        found += [step] if track.collapse(Skip(step=step, scale=scale)) is not None else []
        track.add(step, scale, skipped=True)

    assert found == [17]


def test_a_scaler_made_anew_is_warmed_up_anew():
    track = ScaleTrack()
    for step in range(20):
        track.add(step, 1024.0, skipped=False)

    assert track.kind(1024.0) == "fall"
    assert track.kind(2.0**24) == "warm-up"
