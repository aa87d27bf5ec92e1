"""Which loss scale the values of a reading contain: that of its step in backward, and what was left in gradients.

Only what descends from the loss's gradient has it: at level `ops` backward also shows results that were computed with
saved values of forward alone (port `out[i]`), which are the same at every scale.

A parameter's gradient is read just before the optimizer uses it: with the scale still in it, unless the program had
taken it out (`scaler.unscale_`). The recorded grad norm, from which the scale is always taken out, tells which.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.nouns import StepRecord

Key = tuple[int, int]  # rank, step


def is_scaled(phase: str, port: str) -> bool:
    """Return whether a loss scale multiplies the values of such a reading."""
    return phase == "grad" or (phase == "backward" and not port.startswith("out["))


def _is_of_backward(table: pa.Table) -> npt.NDArray[np.bool_]:
    in_backward = pc.and_(pc.equal(table["phase"], "backward"), pc.invert(pc.starts_with(table["port"], "out[")))
    return pc.or_(in_backward, pc.equal(table["phase"], "scaler")).to_numpy(zero_copy_only=False)


def carried_scales(
    table: pa.Table, records: Sequence[tuple[int, StepRecord]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return per row the scale that its values contain, and the loss scale of its step (1 without a scaler)."""
    known = {(rank, record.step): record for rank, record in records}
    keys = list(zip(table["rank"].to_pylist(), table["step"].to_pylist(), strict=True))
    recorded = np.array([_scale(known, key) for key in keys], np.float64)
    is_backward = _is_of_backward(table)
    is_grad = pc.equal(table["phase"], "grad").to_numpy(zero_copy_only=False)
    is_whole = table["n_hist"].to_numpy() > 0  # a sentinel's norm has no scale left in it
    left_in = _left_in(table.filter(pa.array(is_grad & is_whole)), known) if is_grad.any() else {}
    in_grads = np.array([left_in.get(key, True) for key in keys]) if is_grad.any() else np.zeros(len(keys), np.bool_)
    has_scale = is_backward | (is_grad & is_whole & in_grads)
    return np.where(has_scale, recorded, 1.0), np.where(is_backward | is_grad, recorded, 1.0)


def _scale(known: dict[Key, StepRecord], key: Key) -> float:
    """Return the loss scale of a step; a step that was not completed has that of the one before, else 1."""
    for step in (key[1], key[1] - 1):
        record = known.get((key[0], step))
        if record is not None:
            scale = record.loss_scale
            return scale if scale is not None and 0.0 < scale < math.inf else 1.0
    return 1.0


def _left_in(table: pa.Table, known: dict[Key, StepRecord]) -> dict[Key, bool]:
    """Return per (rank, step) whether gradients still contain the scale; the usual answer where it cannot be told."""
    squares: dict[Key, float] = defaultdict(float)
    columns: list[Any] = [table[name].to_pylist() for name in ("rank", "step", "sumsq")]
    for rank, step, sumsq in zip(*columns, strict=True):
        squares[rank, step] += sumsq
    answers = {key: _is_left_in(math.sqrt(total), known.get(key)) for key, total in squares.items()}
    told = [answer for answer in answers.values() if answer is not None]
    usual = sum(told) * 2 >= len(told)
    return {key: usual if answer is None else answer for key, answer in answers.items()}


def _is_left_in(norm: float, record: StepRecord | None) -> bool | None:
    """Return whether a norm is nearer to grad norm times scale than to grad norm; None when not known."""
    if record is None or record.loss_scale is None or record.grad_norm is None:
        return None
    scale, truth = record.loss_scale, record.grad_norm
    if not (0.0 < truth < math.inf and 0.0 < norm < math.inf and 0.0 < scale < math.inf) or scale == 1.0:
        return None
    return abs(math.log(norm / truth / scale)) < abs(math.log(norm / truth))
