"""HC337: labels of ranks that have few of them weigh more than those of others."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from panels_by_hand import grid_of, panel_of

from hypocenter.detect.group_rules.labels_of_ranks import check
from hypocenter.detect.law_rows import LABELS, MADE, SKETCH, USED
from hypocenter.detect.panel import JobHistory
from hypocenter.nouns import Reading, Summary


def row(site, port, step, **summary):
    return Reading(
        step=step, microbatch=0, phase="grad", site=site, port=port, order=1, summary=Summary(n=1, **summary)
    )


def rows(step, counts, *, weights=None, whole=1.0, alike=0.0):
    """Means of the ranks' means, of gradients that have so much in common."""
    rng, found = np.random.default_rng(step), []
    weights = weights or [1.0 / len(counts)] * len(counts)
    for site in ("a", "b", "c"):
        common = rng.standard_normal(SKETCH)
        made = [alike * common + (1.0 - alike) * rng.standard_normal(SKETCH) for _ in counts]
        used = sum(weight * each for weight, each in zip(weights, made, strict=True))
        for rank, each in enumerate(made):
            found += [
                (rank, row(site, MADE, step, sum=1.0, sketch=tuple(each))),
                (rank, row(site, USED, step, sum=1.0, sketch=tuple(used))),
            ]
    for rank, n in enumerate(counts):
        labels = Reading(
            step=step, microbatch=0, phase="grad", site=LABELS, port=MADE, order=1, summary=Summary(n=n, sum=whole)
        )
        found.append((rank, labels))
    return found


def told(steps):
    history = JobHistory()
    return [f for step, of in steps.items() for f in check(panel_of(of, grid_of(dp=2), step=step, history=history))]


def test_a_mean_of_means_over_ranks_is_told_once():
    (found,) = told({step: rows(step, [100, 300]) for step in (2, 4, 8)})

    assert (found.code, found.step, found.rank, found.severity) == ("HC337", 2, 0, "warning")
    assert found.title == "labels of rank 0 weigh 3 times those of rank 1"


def test_it_began_where_ranks_with_other_numbers_of_labels_weighed_the_same():
    faint, even, by_labels = rows(0, [180, 220]), rows(1, [200, 200]), rows(1, [180, 220], weights=[0.45, 0.55])
    clear = {step: rows(step, [100, 300]) for step in (4, 8)}

    assert [f.step for f in told({0: faint, **clear})] == [0]
    assert [f.step for f in told({0: faint, 1: even, **clear})] == [0]
    assert [f.step for f in told({0: faint, 1: by_labels, **clear})] == [4]


@pytest.mark.parametrize(
    "traits",
    [
        {"counts": [180, 220]},  # 5 % of the loss belongs to other labels
        {"counts": [100, 300], "weights": [0.25, 0.75]},  # each label weighs the same
        {"counts": [100, 300], "weights": [0.4, 0.6]},  # neither the one nor the other
        {"counts": [100, 300], "alike": 0.99},  # it makes no difference
        {"counts": [100, 300], "whole": 0.0},
    ],
)
def test_what_is_even_or_matters_little_is_silent(traits):
    assert told({step: rows(step, **traits) for step in (2, 4, 8)}) == []


def test_one_step_may_be_the_last_of_a_data_set():
    assert told({2: rows(2, [100, 300]), 4: rows(4, [300, 300]), 8: rows(8, [300, 300])}) == []
