"""A part of the table of planted differences, case by case; all of it: `python -m bench.compare planted`."""

from __future__ import annotations

import pytest
from cases import CASES, NOISE
from recorded import Recordings, is_cause_right, is_site_right

from hypocenter.compare.fitting import ENOUGH
from hypocenter.record.reader import open_run

pytestmark = pytest.mark.long
IN_CI = (  # of each cause one
    "eps-qwen-fp32", "heads-in-code-qwen-fp32", "rotary-weights-qwen-fp32", "no-bias-qwen-fp32", "plus-one-qwen-fp32",
    "layer-bf16-qwen-fp32", "embedding-scale-qwen-fp32", "mask-qwen-fp32", "decay-qwen-fp32", "adam-eps-qwen-fp32",
    "gelu-gpt2-fp32", "transposed-all-gpt2-fp32", "no-shift-gpt2-fp32", "steps-swapped-gpt2-fp32",
    "not-divided-gpt2-bf16-acc2",
)  # fmt: skip
SAMPLE = [case for case in CASES if case.id in IN_CI]
QUIET_IN_CI = (
    "sdpa-math-qwen-fp32", "order-1-gpt2-fp32", "eager-gpt2-fp32", "sums-in-two-qwen-bf16",
    "threads-2-qwen-fp32-flat_norm", "ddp-gpt2-fp32-even_rows", "sums-in-two-by-repeats-gpt2-fp32",
)  # fmt: skip
QUIET = [case for case in NOISE if case.id in QUIET_IN_CI]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """All recordings of the sample, of two steps: what is planted shows in the first, or in the data of both."""
    made = Recordings(tmp_path_factory.mktemp("planted"), n_steps=2)
    made.make([*SAMPLE, *QUIET])
    return made


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.id)
def test_a_planted_difference_is_placed_and_named(recordings, case):
    found = recordings.compared(case)

    assert is_site_right(case, found), found.sentence
    assert is_cause_right(case, found), (found.fit, found.sentence)
    assert found.fit.explained > ENOUGH
    assert found.fit.text in found.why[0]


@pytest.mark.parametrize("case", QUIET, ids=lambda case: case.id)
def test_another_order_of_sums_is_never_a_difference(recordings, case):
    found = recordings.compared(case)

    assert found.status != "diverged", found.sentence
    assert found.fit is None
    assert found.floor_source == ("repeats" if case.repeats else "calibration")


def test_two_ranks_are_recorded_as_two(recordings):
    (case,) = (case for case in QUIET if case.n_ranks == 2)

    assert len(open_run(recordings.candidate(case)).ranks) == 2
    assert len(open_run(recordings.baseline(case)).ranks) == 1


def test_the_table_covers_every_kind_networks_and_formats():
    assert len(CASES) >= 40
    assert len(NOISE) >= 40
    assert len({case.id for case in NOISE}) == len(NOISE)
    assert set(QUIET_IN_CI) <= {case.id for case in NOISE}
    assert len({case.id for case in CASES}) == len(CASES)
    assert len({case.kind for case in CASES} - {"others"}) == 17
    assert {(case.base.network, case.base.dtype) for case in CASES} == {
        (network, dtype) for network in ("qwen", "gpt2", "t5") for dtype in ("float32", "bfloat16")
    }
