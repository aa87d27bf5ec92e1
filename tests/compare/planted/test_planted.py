"""A part of the table of planted differences, case by case; all of it: `python -m bench.compare planted`."""

from __future__ import annotations

import pytest
from cases import CASES, NOISE
from recorded import Recordings, is_cause_right, is_site_right

from hypocenter.compare.fitting import ENOUGH

IN_CI = (
    "eps-qwen-fp32", "heads-in-code-qwen-fp32", "rotary-weights-qwen-fp32", "no-bias-qwen-fp32", "plus-one-qwen-fp32",
    "layer-bf16-qwen-fp32", "embedding-scale-qwen-fp32", "mask-qwen-fp32", "decay-qwen-fp32", "adam-eps-qwen-fp32",
    "gelu-gpt2-fp32", "transposed-all-gpt2-fp32", "attention-scale-gpt2-fp32", "beta2-gpt2-fp32",
    "no-shift-gpt2-fp32", "steps-swapped-gpt2-fp32", "not-divided-gpt2-bf16-acc2", "rotary-table-qwen-bf16",
    "no-bias-all-qwen-bf16", "eps-all-qwen-bf16",
)  # fmt: skip
SAMPLE = [case for case in CASES if case.id in IN_CI]
QUIET = [
    case for case in NOISE
    if case.base.id in ("qwen-fp32", "gpt2-fp32", "qwen-bf16") and case.edit[0] in ("sdpa", "split_sums", "eager")
]  # fmt: skip


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """All recordings of the sample."""
    made = Recordings(tmp_path_factory.mktemp("planted"))
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


def test_the_table_covers_every_kind_networks_and_formats():
    assert len(CASES) >= 40
    assert len(NOISE) >= 40
    assert len({case.id for case in CASES}) == len(CASES)
    assert len({case.kind for case in CASES} - {"others"}) == 17
    assert {(case.base.network, case.base.dtype) for case in CASES} == {
        (network, dtype) for network in ("qwen", "gpt2", "t5") for dtype in ("float32", "bfloat16")
    }
