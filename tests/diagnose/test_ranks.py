"""Shares of all ranks are added up; whatever is missing or does not fit together accuses nobody."""

from dataclasses import replace

import pytest

from hypocenter.diagnose.evidence import Evidence, Share
from hypocenter.diagnose.judged_evidence import RunEvidence, judged_piece
from hypocenter.diagnose.ranks import add_up, together

FLOAT16 = 65504.0
SHARE = Share(
    param="head.bias", dtype="float16", limit=FLOAT16, absmax=40_000.0, n=8, n_nonfinite=2, at=(1, 5),
    values=(40_000.0, 39_000.0),
)  # fmt: skip


def evidence(rank, *shares, step=4, n_ranks=2, **more):
    return Evidence(
        trigger="nonfinite-grad", step=step, rank=rank, world_size=n_ranks, bad_params=("head.bias",), n_params=3,
        replayed=True, shares=shares, **more,
    )  # fmt: skip


def judged(*found):
    pieces = tuple(judged_piece(each, rank=each.rank) for each in found)
    return [e.finding for e in together(RunEvidence(found=pieces)).found]


def test_shares_that_pass_the_limit_together_are_the_cause():
    first, second = judged(evidence(0, SHARE), evidence(1, SHARE))

    assert (first.cause, first.confidence, first.op) == ("accumulation-overflow", "proven", "c10d.allreduce_.default")
    assert (first.site, first.param, first.limit, first.actual) == ("head.bias", "head.bias", FLOAT16, 80_000.0)
    assert "40,000 (rank 0), 40,000 (rank 1)" in first.why[0] or "40000 (rank 0), 40000 (rank 1)" in first.why[0]
    assert first.remedy is not None
    assert (second.cause, second.rank) == (first.cause, 1)


@pytest.mark.parametrize("values", [(-40_000.0, -39_000.0), (40_000.0, 1.0)], ids=["they cancel", "one is small"])
def test_every_bad_element_must_pass_the_limit(values: tuple[float, float]):
    other = replace(SHARE, values=values)

    assert {f.cause for f in judged(evidence(0, SHARE), evidence(1, other))} == {"unknown"}


@pytest.mark.parametrize(
    "other",
    [
        replace(SHARE, at=(1, 6)),
        replace(SHARE, n=9),
        replace(SHARE, n_nonfinite=3),
        replace(SHARE, absmax=70_000.0),
        replace(SHARE, param="head.weight"),
    ],
    ids=["other elements", "another size", "another count", "not finite on its own", "another parameter"],
)
def test_what_is_no_copy_of_one_gradient_is_not_added(other):
    assert add_up([evidence(0, SHARE), evidence(1, other)]) is None


def test_all_ranks_must_be_there():
    assert add_up([evidence(0, SHARE, n_ranks=3), evidence(1, SHARE, n_ranks=3)]) is None
    assert add_up([evidence(0, SHARE, n_ranks=1)]) is None
    assert add_up([]) is None


def test_ranks_of_different_steps_are_not_added():
    assert {f.cause for f in judged(evidence(0, SHARE), evidence(1, SHARE, step=5))} == {"unknown"}


def test_where_clipping_hid_the_elements_magnitudes_make_it_likely():
    spread = replace(SHARE, n_nonfinite=8, at=(0, 1), values=(3.0, 2.0))

    (first, _) = judged(evidence(0, spread), evidence(1, spread))

    assert (first.cause, first.confidence, first.actual) == ("accumulation-overflow", "likely", 80_000.0)


def test_small_shares_of_a_spread_gradient_accuse_nobody():
    spread = replace(SHARE, n_nonfinite=8, absmax=30_000.0, at=(0, 1), values=(3.0, 2.0))

    assert add_up([evidence(0, spread), evidence(1, spread)]) is None
