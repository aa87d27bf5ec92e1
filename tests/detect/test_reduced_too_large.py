"""HC333: reduced gradients that are a whole multiple of the batch's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from panels_by_hand import grid_of, panel_of

from hypocenter.detect.group_rules.reduced_too_large import check
from hypocenter.detect.panel import JobHistory
from hypocenter.nouns import Reading, Summary

PLACES = grid_of(cp=2, dp=2)


def reading(site, port, vector=(), *, phase="grad", value=0.0, digest=1, microbatch=0):
    sketch = tuple(float(v) for v in vector) or None
    return Reading(
        step=0, microbatch=microbatch, phase=phase, site=site, port=port, order=1, digest=digest,
        summary=Summary(n=1, sum=value, sumsq=1.0, sketch=sketch),
    )  # fmt: skip


def rows(factor, *, weight=1.0, clip=None, sites=("a", "b"), noise=0.0, n_micro=1):
    """`factor`: what the reduced gradient is to the mean of the local ones."""
    random = np.random.default_rng(0)
    found = []
    for site in sites:
        local = random.normal(size=(4, n_micro, 16))
        used = factor * local.sum(1).mean(0) * (clip or 1.0) + noise * random.normal(size=16)
        for rank in PLACES:
            found += [(rank, reading(site, "grad_local", v, microbatch=m)) for m, v in enumerate(local[rank])]
            found.append((rank, reading(site, "replica.grad", used)))
    for rank in PLACES:
        if weight is not None:
            found.append((rank, reading("label_weight", "value", phase="optimizer", value=weight, digest=None)))
        if clip is not None:
            found.append((rank, reading("clip_coef", "value", phase="optimizer", value=clip, digest=None)))
    return found


@pytest.mark.parametrize("traits", [{}, {"clip": 0.3}, {"n_micro": 3}, {"noise": 1e-4}])
def test_a_factor_of_the_context_parallel_size_is_named_once(traits):
    history = JobHistory()

    (found,) = check(panel_of(rows(2.0, **traits), PLACES, history=history))

    assert (found.param, found.severity, found.cause) == ("a", "warning", "config-mismatch")
    assert found.actual == pytest.approx(2.0, rel=0.01)
    assert list(check(panel_of(rows(2.0), PLACES, history=history))) == []


@pytest.mark.parametrize(
    ("factor", "traits"),
    [
        (1.0, {}),  # the mean over all
        (2.0, {"weight": 0.5}),  # each rank divides by the labels of the whole sequence
        (4.0, {}),  # plainly summed: meant, or another fault
        (1.9, {}),
        (2.0, {"weight": None}),  # no cross-entropy
        (2.0, {"noise": 0.5}),  # something else was done to the gradient
    ],
)
def test_other_factors_and_conventions_are_silent(factor, traits):
    assert list(check(panel_of(rows(factor, **traits), PLACES))) == []


def test_without_context_parallelism_nothing_is_said():
    assert list(check(panel_of(rows(2.0), grid_of(tp=1, dp=4)))) == []
