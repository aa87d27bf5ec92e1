"""One record for each step of a job."""

from __future__ import annotations

import math

from hypocenter.nouns import StepRecord, replace
from hypocenter.report.job_steps import of_job, was_skipped_by_scaler


def test_the_loss_is_the_mean_and_of_norms_the_worst_counts() -> None:
    records = [
        (1, StepRecord(step=0, loss=3.0, grad_norm=math.nan, lr=0.5, n_bad_grads=2)),
        (0, StepRecord(step=1, loss=1.0, skipped=True)),
        (0, StepRecord(step=0, loss=1.0, grad_norm=4.0, lr=0.25)),
    ]

    first, second = of_job(records)

    assert (first.step, first.loss, first.lr, first.n_bad_grads) == (0, 2.0, 0.25, 2)
    assert math.isnan(first.grad_norm)
    assert (second.step, second.loss, second.grad_norm, second.skipped) == (1, 1.0, None, True)


def test_a_stage_without_a_loss_does_not_count() -> None:
    (found,) = of_job([(0, StepRecord(step=0)), (1, StepRecord(step=0, loss=2.5))])

    assert found.loss == 2.5


def test_opposite_infinities_are_no_error() -> None:
    (found,) = of_job([(0, StepRecord(step=0, loss=math.inf)), (1, StepRecord(step=0, loss=-math.inf))])

    assert math.isnan(found.loss)


def test_a_skip_of_a_scaler_is_none_where_the_loss_is_not_finite_or_there_is_no_scaler() -> None:
    skipped = StepRecord(step=0, loss=1.0, grad_norm=math.inf, loss_scale=65536.0, skipped=True, n_bad_grads=1)

    assert was_skipped_by_scaler(skipped)
    assert not was_skipped_by_scaler(replace(skipped, loss=math.nan))
    assert not was_skipped_by_scaler(replace(skipped, loss_scale=None))
    assert not was_skipped_by_scaler(replace(skipped, skipped=False))
