"""HC338: a stage that computes with the activation of another micro-batch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from panels_by_hand import grid_of, panel_of

from hypocenter.detect.group_rules.stale_activation import check
from hypocenter.detect.panel import JobHistory
from hypocenter.nouns import Reading, Summary


def given(step, microbatch, digest, dtype, *, low=0.0, site="batch.in[0]"):
    port = "digest" if dtype == "int64" else "field"
    return Reading(
        step=step, microbatch=microbatch, phase="data", site=site, port=port, order=1, digest=digest, dtype=dtype,
        shape=(4, 8), summary=Summary(n=32, min=low, max=1.0),
    )  # fmt: skip


def told(activations, tokens=(1, 2, 3), **traits):
    history, found = JobHistory(), []
    for step in (0, 10, 20):
        rows = [(0, given(step, m, 100 * step + each, "int64")) for m, each in enumerate(tokens)]
        rows += [(1, given(step, m, 100 * step + each, "float32", **traits)) for m, each in enumerate(activations)]
        found += check(panel_of(rows, grid_of(pp=2), step=step, history=history))
    return found


def test_the_activation_of_the_micro_batch_before():
    (found,) = told([7, 7, 8])

    assert (found.code, found.step, found.rank, found.microbatch) == ("HC338", 0, 1, 1)
    assert "of micro-batch 0" in found.title


@pytest.mark.parametrize(
    "traits",
    [
        {"activations": [7, 8, 9]},
        {"activations": [7, 7, 8], "tokens": (1, 1, 2)},  # the data are the same too
        {"activations": [7, 7, 8], "low": 1.0},  # a constant
        {"activations": [7, 7], "tokens": (1, 2, 3)},  # no stage of the same pipeline
        {"activations": [7, 7, 8], "site": "batch.loss[0]"},
    ],
)
def test_what_may_be_the_same_is_silent(traits):
    assert told(**traits) == []
