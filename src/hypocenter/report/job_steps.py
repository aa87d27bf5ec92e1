"""Step records of all ranks in, one for each step of the job out: what curves are drawn from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hypocenter.nouns import StepRecord


def of_job(records: Iterable[tuple[int, StepRecord]]) -> list[StepRecord]:
    """Return one record for each step of the job, in order.

    The loss is the mean over the ranks that have one: each part of the batch has equally many. Of gradient norms, bad
    gradients and skipped steps the worst counts, of all else the lowest rank's.
    """
    by_step: dict[int, list[tuple[int, StepRecord]]] = defaultdict(list)
    for rank, record in records:
        by_step[record.step].append((rank, record))
    return [
        _joined([record for _, record in sorted(by_step[step], key=lambda one: one[0])]) for step in sorted(by_step)
    ]


def was_skipped_by_scaler(record: StepRecord) -> bool:
    """Return whether a loss scaler left the step out because its scale was too large: that is no failure."""
    has_loss = record.loss is None or math.isfinite(record.loss)
    return record.skipped and record.loss_scale is not None and has_loss


def _joined(records: list[StepRecord]) -> StepRecord:
    losses = [record.loss for record in records if record.loss is not None]
    norms = [record.grad_norm for record in records if record.grad_norm is not None]
    return replace(
        records[0],
        loss=_mean(losses) if losses else None,
        grad_norm=max(norms, key=lambda norm: math.inf if math.isnan(norm) else norm) if norms else None,
        n_bad_grads=max(record.n_bad_grads for record in records),
        skipped=any(record.skipped for record in records),
    )


def _mean(values: list[float]) -> float:
    """Return the mean; not finite if a value is not (fsum would raise at opposite infinities)."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values)
