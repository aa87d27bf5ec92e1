"""HC334: equal values summed over a group, and used as a gradient."""

from __future__ import annotations

import cProfile
import pstats
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from panels_by_hand import grid_of, panel_of

from hypocenter.detect.group_rules.identical_sum import check
from hypocenter.detect.panel import JobHistory
from hypocenter.nouns import Reading, Summary

SUMMED, MINE = 77, 1000  # digests


def comm(group, port, digest, *, op="all_reduce.sum", n=16, sumsq=2.0, call=0):
    return Reading(
        step=0, microbatch=0, phase="comm", site="", port=port, order=1, call=call, op=op, digest=digest,
        names=("tp", ",".join(map(str, group)), "7", ""), summary=Summary(n=n, sumsq=sumsq),
    )  # fmt: skip


def gradient(digest, *, site="router.weight", n=16, sumsq=8.0):
    return Reading(
        step=0, microbatch=0, phase="grad", site=site, port="replica.grad", order=9, digest=digest,
        summary=Summary(n=n, sumsq=sumsq),
    )  # fmt: skip


def rows(group, *, inputs=None, used=SUMMED, **traits):
    found = []
    for at, rank in enumerate(group):
        found += [
            (rank, comm(group, "in[0]", (inputs or [MINE] * len(group))[at], **traits)),
            (rank, comm(group, "out[0]", SUMMED, **traits)),
            (rank, gradient(used, n=traits.get("n", 16))),
        ]
    return found


def test_what_every_rank_has_and_is_summed_is_named_once():
    places, history = grid_of(tp=4), JobHistory()

    (found,) = check(panel_of(rows((0, 1, 2, 3)), places, history=history))

    assert (found.param, found.actual, found.severity, found.confidence) == ("router.weight", 4.0, "note", "possible")
    assert list(check(panel_of(rows((0, 1, 2, 3)), places, step=1, history=history))) == []


@pytest.mark.parametrize(
    "traits",
    [
        {"inputs": [MINE, MINE + 1]},  # partial values, as they should be
        {"used": 78},  # divided afterwards
        {"used": MINE},  # not used at all: a copy for the log
        {"op": "all_reduce.max"},
        {"op": "all_reduce.avg"},
        {"sumsq": 0.0},  # zeros
        {"op": "broadcast"},
    ],
)
def test_sums_that_are_right_are_silent(traits):
    assert list(check(panel_of(rows((0, 1), **traits), grid_of(tp=2)))) == []


def with_local(digests, **traits):
    local = [(rank, replace(gradient(digest), port="grad_local")) for rank, digest in enumerate(digests)]
    return panel_of([*rows((0, 1), **traits), *local], grid_of(dp=2))


def test_an_average_over_data_parallel_ranks_that_is_summed_once_more():
    (found,) = check(with_local([5, 6]))

    assert (found.param, found.actual, found.severity, found.confidence) == ("router.weight", 2.0, "warning", "proven")
    assert (found.cause, found.step) == ("program-error", 0)


def test_an_average_that_is_summed_and_divided_is_silent():
    assert list(check(with_local([5, 6], used=78))) == []


def test_ranks_that_have_the_same_data_are_another_rules_business():
    assert list(check(with_local([5, 5]))) == list(check(panel_of(rows((0, 1)), grid_of(dp=2)))) == []


def test_a_rank_whose_rows_are_missing_leaves_it_open():
    some = [pair for pair in rows((0, 1)) if pair[0] == 0 or pair[1].port != "in[0]"]

    assert list(check(panel_of(some, grid_of(tp=2)))) == []


def test_four_times_the_ranks_take_four_times_the_work():
    template = rows(range(8), inputs=[MINE + i for i in range(8)])

    def work(n_groups):
        found = [
            (8 * group + rank, comm(range(8 * group, 8 * group + 8), row.port, row.digest, call=call))
            for group in range(n_groups)
            for rank, row in template
            if row.phase == "comm"
            for call in range(8)
        ]
        panel, profile = panel_of(found, grid_of(tp=8, dp=n_groups)), cProfile.Profile()
        assert profile.runcall(lambda: list(check(panel))) == []
        return pstats.Stats(profile).total_calls

    assert work(64) < 5 * work(16)  # of 512 ranks and of 128, in calls of functions
