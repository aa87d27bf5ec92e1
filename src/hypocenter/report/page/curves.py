"""The numbers of each step as curves: loss, grad norm, loss scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.nouns import StepRecord
from hypocenter.report.job_steps import of_job

MOST_POINTS = 4000  # of one curve; a chart is about 600 pixels wide


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Columns of equal length, one entry per step shown. A value is None where it is unknown or not finite."""

    steps: tuple[int, ...]
    loss: tuple[float | None, ...]
    grad_norm: tuple[float | None, ...]
    loss_scale: tuple[float | None, ...]
    bad_steps: tuple[int, ...]  # loss or grad norm not finite, or gradients not finite
    remark: str  # what was left out, or empty


def curves_of(records: Sequence[tuple[int, StepRecord]]) -> Curves:
    """One point per step of the job (job_steps), thinned evenly above MOST_POINTS; bad steps always stay."""
    ordered = of_job(records)
    stride = max(1, math.ceil(len(ordered) / MOST_POINTS))
    shown = [record for index, record in enumerate(ordered) if index % stride == 0 or is_bad(record)][: 2 * MOST_POINTS]
    return Curves(
        steps=tuple(record.step for record in shown),
        loss=tuple(_finite(record.loss) for record in shown),
        grad_norm=tuple(_finite(record.grad_norm) for record in shown),
        loss_scale=tuple(_finite(record.loss_scale) for record in shown),
        bad_steps=tuple(record.step for record in shown if is_bad(record)),
        remark=f"every {stride}th of {len(ordered):,} steps is drawn" if stride > 1 else "",
    )


def is_bad(record: StepRecord) -> bool:
    """Whether something of this step was not finite."""
    values = (record.loss, record.grad_norm)
    return record.n_bad_grads > 0 or any(value is not None and not math.isfinite(value) for value in values)


def _finite(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
